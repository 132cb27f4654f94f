import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { SessionEventSchema, SessionSchema, SessionState } from "../src/gen/retinue/manager/v1/session_pb";
import { Rows } from "../src/live/rows";

const session = (id: string) => create(SessionSchema, { id, state: SessionState.PENDING });

function created(id: string) {
  return create(SessionEventSchema, { sessionId: id, change: { case: "created", value: session(id) } });
}

function moved(id: string) {
  return create(SessionEventSchema, {
    sessionId: id,
    change: { case: "sessionMoved", value: { toState: SessionState.RUNNING } },
  });
}

it("keeps the newest sessions first, and no more than so many", () => {
  const rows = new Rows(3);
  rows.replace([session("b"), session("a")]);
  for (const id of ["c", "d", "e"]) rows.apply(created(id));
  expect(rows.all().map(({ id }) => id)).toEqual(["e", "d", "c"]);
  expect(rows.size).toBe(3);
  expect(rows.get("a")).toBeUndefined();
});

it("does not take back a session that had to go", () => {
  const rows = new Rows(1);
  rows.apply(created("a"));
  rows.apply(created("b"));
  rows.apply(moved("a"));
  rows.apply(moved("b"));
  expect(rows.all().map(({ id, state }) => [id, state])).toEqual([["b", SessionState.RUNNING]]);
});

it("holds an event that came with the list to be none", () => {
  const rows = new Rows(3);
  rows.replace([session("a")]);
  rows.apply(created("a"));
  expect(rows.size).toBe(1);
});
