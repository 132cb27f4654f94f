import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { describe, expect, it } from "vitest";
import {
  KernelState,
  type SessionEvent,
  SessionEventSchema,
  SessionResult,
  SessionSchema,
  SessionState,
} from "../src/gen/retinue/manager/v1/session_pb";
import { applied, hasEnded } from "../src/live/reduce";

const TIME = timestampFromMs(1_700_000_000_000);
const pending = create(SessionSchema, {
  id: "s",
  state: SessionState.PENDING,
  spec: { name: "a", priority: 10 },
  kernels: [
    { id: "k1", hostname: "main1", state: KernelState.PENDING },
    { id: "k2", hostname: "sub1", state: KernelState.PENDING },
  ],
});

function event(change: SessionEvent["change"]): SessionEvent {
  return { ...create(SessionEventSchema, { sessionId: "s", createTime: TIME }), change };
}

function moved(toState: SessionState, result = SessionResult.UNDEFINED, exitCode?: number): SessionEvent {
  const made = create(SessionEventSchema, {
    change: { case: "sessionMoved", value: { toState, result, exitCode, reason: "R" } },
  });
  return event(made.change);
}

describe("events of a session", () => {
  it("creates one that is not known, and keeps one that is", () => {
    expect(applied(undefined, event({ case: "created", value: pending }))).toBe(pending);
    const running = applied(pending, moved(SessionState.RUNNING));
    expect(applied(running, event({ case: "created", value: pending }))).toBe(running);
  });

  it("leaves out what belongs to no known session", () => {
    expect(applied(undefined, moved(SessionState.RUNNING))).toBeUndefined();
  });

  it("keeps the times of its steps", () => {
    const running = applied(applied(pending, moved(SessionState.SCHEDULED)), moved(SessionState.RUNNING));
    expect(running?.scheduleTime).toBe(TIME);
    expect(running?.startTime).toBe(TIME);
    expect(running?.endTime).toBeUndefined();
    const ended = applied(running, moved(SessionState.TERMINATED, SessionResult.FAILED, 3));
    expect(ended?.endTime).toBe(TIME);
    expect(ended?.exitCode).toBe(3);
    expect(ended && hasEnded(ended)).toBe(true);
  });

  it("changes one kernel, and no session in place", () => {
    const made = create(SessionEventSchema, {
      change: {
        case: "kernelMoved",
        value: { kernelId: "k2", toState: KernelState.RUNNING, agent: "n2", address: "10.0.0.3" },
      },
    });
    const after = applied(pending, event(made.change));
    expect(after?.kernels.map((kernel) => kernel.state)).toEqual([KernelState.PENDING, KernelState.RUNNING]);
    expect(after?.kernels[1]?.agent).toBe("n2");
    expect(pending.kernels[1]?.state).toBe(KernelState.PENDING);
  });

  it("shows a state that this page does not know", () => {
    expect(applied(pending, moved(99 as SessionState))?.state).toBe(99);
  });
});
