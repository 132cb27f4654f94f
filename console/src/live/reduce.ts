import { type Kernel, type Session, type SessionEvent, SessionState } from "../gen/retinue/manager/v1/session_pb";

const ENDED = new Set([SessionState.TERMINATED, SessionState.CANCELLED]);

export function hasEnded(session: Session): boolean {
  return ENDED.has(session.state);
}

/** Returns the session after an event; undefined when it is not known, and the event does not create it. */
export function applied(session: Session | undefined, event: SessionEvent): Session | undefined {
  const change = event.change;
  if (change.case === "created") return session ?? change.value;
  if (session === undefined) return undefined;
  switch (change.case) {
    case "sessionMoved": {
      const move = change.value;
      return {
        ...session,
        state: move.toState,
        result: move.result,
        exitCode: move.exitCode,
        reason: move.reason,
        message: move.message,
        network: move.network || session.network,
        retries: move.retries,
        // Back in the queue, it has not been placed.
        scheduleTime: move.toState === SessionState.SCHEDULED ? event.createTime : session.scheduleTime,
        startTime: move.toState === SessionState.RUNNING ? event.createTime : session.startTime,
        endTime: ENDED.has(move.toState) ? event.createTime : session.endTime,
      };
    }
    case "kernelMoved": {
      const move = change.value;
      return withKernel(session, move.kernelId, (kernel) => ({
        ...kernel,
        state: move.toState,
        agent: move.agent,
        attempt: move.attempt,
        address: move.address || kernel.address,
        exitCode: move.exitCode,
        reason: move.reason,
        imageDigest: move.imageDigest || kernel.imageDigest,
        servicePorts: move.servicePorts.length > 0 ? move.servicePorts : kernel.servicePorts,
        endTime: move.endTime,
      }));
    }
    case "reasonChanged":
      return {
        ...session,
        reason: change.value.reason,
        message: change.value.message,
        conditions: change.value.conditions,
      };
    case "imagePull": {
      const pull = change.value;
      return withKernel(session, pull.kernelId, (kernel) => ({ ...kernel, pull: pull.progress }));
    }
    case "sessionUpdated": {
      const { name, priority, hold } = change.value;
      return session.spec ? { ...session, spec: { ...session.spec, name, priority, hold } } : session;
    }
    default:
      return session;
  }
}

function withKernel(session: Session, id: string, change: (kernel: Kernel) => Kernel): Session {
  return { ...session, kernels: session.kernels.map((kernel) => (kernel.id === id ? change(kernel) : kernel)) };
}
