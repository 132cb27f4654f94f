import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { SessionSchema } from "../src/gen/retinue/manager/v1/session_pb";
import { moved } from "../src/live/anchor";

const [a, b, c, d] = ["a", "b", "c", "d"].map((id) => create(SessionSchema, { id }));
if (!a || !b || !c || !d) throw new Error("there are four");

it("says how far what is in view has moved", () => {
  expect(moved([b, c], [a, b, c], 0, 1)).toBe(1);
  expect(moved([a, b, c], [b, c], 1, 2)).toBe(-1);
  expect(moved([a, b], [a, b, c], 0, 1)).toBe(0);
});

it("does not follow a row that has changed, and so may have moved by itself", () => {
  expect(moved([b, c], [a, c, { ...b }], 0, 1)).toBe(0);
});

it("stays where nothing that was in view is left", () => {
  expect(moved([a, b], [c, d], 0, 1)).toBe(0);
});
