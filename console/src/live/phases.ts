import { timestampDate } from "@bufbuild/protobuf/wkt";
import { type Session, type SessionEvent, SessionState } from "../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "./reduce";

export type PhaseKind = "waiting" | "preparing" | "running" | "ending";

/** A part of the life of a session. The last one of a session that lives has no end. */
export interface Phase {
  kind: PhaseKind;
  /** In milliseconds since 1970. */
  from: number;
  to: number | undefined;
  /** Why it was so, in the server's words. */
  causes: string[];
}

const KINDS: Partial<Record<SessionState, PhaseKind>> = {
  [SessionState.PENDING]: "waiting",
  [SessionState.SCHEDULED]: "preparing",
  [SessionState.PREPARING]: "preparing",
  [SessionState.RUNNING]: "running",
  [SessionState.TERMINATING]: "ending",
};

/** The life of a session by its journal; by its own times where the journal does not go back to its beginning. */
export function phasesOf(session: Session, events: readonly SessionEvent[]): Phase[] {
  return events[0]?.change.case === "created" ? byEvents(session, events) : byTimes(session);
}

function byEvents(session: Session, events: readonly SessionEvent[]): Phase[] {
  const phases: Phase[] = [];
  const enter = (kind: PhaseKind | undefined, at: number) => {
    const last = phases.at(-1);
    if (last?.kind === kind && last?.to === undefined) return;
    if (last !== undefined) last.to ??= at;
    if (kind !== undefined) phases.push({ kind, from: at, to: undefined, causes: [] });
  };
  const because = (cause: string) => {
    const last = phases.at(-1);
    if (last !== undefined && cause !== "" && last.causes.at(-1) !== cause) last.causes.push(cause);
  };
  for (const { change, createTime } of events) {
    const at = createTime === undefined ? 0 : timestampDate(createTime).getTime();
    if (change.case === "created") enter("waiting", at);
    if (change.case === "reasonChanged") because(change.value.message);
    if (change.case === "imagePull" && change.value.progress?.bytes === 0n) because(change.value.image);
    if (change.case === "sessionMoved") {
      enter(KINDS[change.value.toState], at);
      because(change.value.message);
    }
  }
  const last = phases.at(-1);
  if (hasEnded(session) && session.endTime && last !== undefined) last.to ??= timestampDate(session.endTime).getTime();
  return phases;
}

function byTimes(session: Session): Phase[] {
  const { createTime, scheduleTime, startTime, endTime } = session;
  const phases: Phase[] = [];
  const add = (kind: PhaseKind, from: typeof createTime, to: typeof createTime) => {
    if (from === undefined) return;
    const end = to && timestampDate(to).getTime();
    phases.push({ kind, from: timestampDate(from).getTime(), to: end, causes: [] });
  };
  add("waiting", createTime, scheduleTime ?? startTime ?? endTime);
  add("preparing", scheduleTime, startTime ?? endTime);
  add("running", startTime, endTime);
  const last = phases.at(-1);
  if (last !== undefined && session.message !== "") last.causes.push(session.message);
  return phases;
}
