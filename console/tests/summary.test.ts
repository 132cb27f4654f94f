import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { expect, it } from "vitest";
import { SessionResult, SessionSchema, SessionState } from "../src/gen/retinue/manager/v1/session_pb";
import { room, summary } from "../src/live/summary";

const HOUR = 3600 * 1000;
const NOW = 1000 * HOUR;

function session(id: string, state: SessionState, created: number, ended?: number, result?: SessionResult) {
  return create(SessionSchema, {
    id,
    state,
    result: result ?? SessionResult.UNDEFINED,
    createTime: timestampFromMs(created),
    ...(ended === undefined ? {} : { endTime: timestampFromMs(ended) }),
  });
}

it("sorts sessions by what a reader asks first", () => {
  const { TERMINATED, PENDING, PREPARING, RUNNING, CANCELLED } = SessionState;
  const found = summary(
    [
      session("failed", TERMINATED, 0, NOW - HOUR, SessionResult.FAILED),
      session("late", PENDING, NOW - HOUR),
      session("early", PENDING, NOW - 9 * HOUR),
      session("starts", PREPARING, NOW),
      session("runs", RUNNING, NOW - HOUR),
      session("long ago", TERMINATED, 0, NOW - 30 * HOUR, SessionResult.FAILED),
      session("cancelled", CANCELLED, 0, NOW),
    ],
    NOW,
  );
  const ids = (list: readonly { id: string }[]) => list.map(({ id }) => id);
  expect(ids(found.running)).toEqual(["starts", "runs"]);
  expect(found.starting).toBe(1);
  expect(ids(found.waiting)).toEqual(["early", "late"]);
  expect(ids(found.ended)).toEqual(["cancelled", "failed", "long ago"]);
  expect([found.endedToday, found.failedToday]).toEqual([2, 1]);
});

it("adds up what nodes have, and leaves out what none has", () => {
  const nodes: { capacity: Record<string, string>; occupied: Record<string, string> }[] = [
    { capacity: { mem: "1g", cuda: "0", cpu: "4" }, occupied: { cpu: "1.5" } },
    { capacity: { cpu: "2", mem: "1g" }, occupied: { mem: "512m" } },
  ];
  expect(room(nodes)).toEqual([
    { slot: "cpu", used: 1.5, all: 6 },
    { slot: "mem", used: 2 ** 29, all: 2 ** 31 },
  ]);
});
