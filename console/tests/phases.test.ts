import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { expect, it } from "vitest";
import { SessionEventSchema, SessionSchema, SessionState } from "../src/gen/retinue/manager/v1/session_pb";
import { phasesOf } from "../src/live/phases";

const created = create(SessionEventSchema, {
  createTime: timestampFromMs(1000),
  change: { case: "created", value: create(SessionSchema) },
});

function moved(ms: number, toState: SessionState, message = "") {
  return create(SessionEventSchema, {
    createTime: timestampFromMs(ms),
    change: { case: "sessionMoved", value: { toState, message } },
  });
}

function waits(ms: number, message: string) {
  return create(SessionEventSchema, {
    createTime: timestampFromMs(ms),
    change: { case: "reasonChanged", value: { message } },
  });
}

it("tells a life with a retry, and why each part was", () => {
  const session = create(SessionSchema, { state: SessionState.TERMINATED });
  const events = [
    created,
    waits(1500, "needs 4 cpu"),
    waits(1600, "needs 4 cpu"),
    moved(2000, SessionState.SCHEDULED),
    moved(2100, SessionState.PREPARING),
    moved(3000, SessionState.RUNNING),
    moved(5000, SessionState.PENDING, "the node was lost"),
    moved(6000, SessionState.SCHEDULED),
    moved(7000, SessionState.RUNNING),
    moved(8000, SessionState.TERMINATING, "by its owner"),
    moved(9000, SessionState.TERMINATED, "by its owner"),
  ];
  expect(phasesOf(session, events)).toEqual([
    { kind: "waiting", from: 1000, to: 2000, causes: ["needs 4 cpu"] },
    { kind: "preparing", from: 2000, to: 3000, causes: [] },
    { kind: "running", from: 3000, to: 5000, causes: [] },
    { kind: "waiting", from: 5000, to: 6000, causes: ["the node was lost"] },
    { kind: "preparing", from: 6000, to: 7000, causes: [] },
    { kind: "running", from: 7000, to: 8000, causes: [] },
    { kind: "ending", from: 8000, to: 9000, causes: ["by its owner"] },
  ]);
});

it("goes by the session's own times where the journal begins later", () => {
  const session = create(SessionSchema, {
    state: SessionState.RUNNING,
    createTime: timestampFromMs(1000),
    scheduleTime: timestampFromMs(2000),
    startTime: timestampFromMs(2500),
  });
  expect(phasesOf(session, [moved(2500, SessionState.RUNNING)]).map(({ kind, from, to }) => [kind, from, to])).toEqual([
    ["waiting", 1000, 2000],
    ["preparing", 2000, 2500],
    ["running", 2500, undefined],
  ]);
});
