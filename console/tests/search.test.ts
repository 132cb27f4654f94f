import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { SessionSchema, SessionState, SessionType } from "../src/gen/retinue/manager/v1/session_pb";
import { inTab, matching, ordered } from "../src/live/search";

function session(name: string, owner: string, state: SessionState, agent: string, number: bigint) {
  return create(SessionSchema, {
    id: `id-${name}`,
    number,
    owner,
    state,
    spec: { name, type: SessionType.BATCH, labels: { team: "vision" } },
    kernels: [{ agent }],
  });
}

const all = [
  session("train-1", "kim", SessionState.RUNNING, "n1", 17n),
  session("train-2", "lee", SessionState.PENDING, "", 18n),
  session("x(1", "kim", SessionState.TERMINATED, "", 171n),
];
const names = (text: string) => all.filter(matching(text)).map((each) => each.spec?.name);

it.each([
  ["", ["train-1", "train-2", "x(1"]],
  ["train", ["train-1", "train-2"]],
  ["name:train-* owner:kim", ["train-1"]],
  ["owner:kim", ["train-1", "x(1"]],
  ["state:pending", ["train-2"]],
  ["agent:n1", ["train-1"]],
  ["label:team=vision train", ["train-1", "train-2"]],
  // Not a pattern of its own: text stays text.
  ["name:x(", ["x(1"]],
  ["id-train-2", ["train-2"]],
  ["17", ["train-1"]],
  ["number:17", ["train-1", "x(1"]],
  ["unknown:word", []],
])("finds by %j", (text, found) => {
  expect(names(text)).toEqual(found);
});

it("puts sessions into tabs", () => {
  const count = (tab: Parameters<typeof inTab>[1]) => all.filter((each) => inTab(each, tab)).length;
  expect([count("all"), count("running"), count("waiting"), count("ended")]).toEqual([3, 1, 1, 1]);
});

it("orders by a column, and keeps the order in which sessions came", () => {
  expect(ordered(all, "name", true).map((each) => each.spec?.name)).toEqual(["x(1", "train-2", "train-1"]);
  expect(ordered(all, "age", false)).toBe(all);
});
