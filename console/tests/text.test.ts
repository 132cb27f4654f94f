import { create, equals } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { ClusterMode, SessionSpecSchema, SessionType } from "../src/gen/retinue/manager/v1/session_pb";
import { Isolation } from "../src/gen/retinue/types/v1/isolation_pb";
import { around, compared } from "../src/spec/lines";
import { specOfText, yamlOf } from "../src/spec/text";

const SPEC = create(SessionSpecSchema, {
  name: "train",
  type: SessionType.BATCH,
  clusterMode: ClusterMode.MULTI_NODE,
  clusterSize: 2,
  kernel: {
    command: ["sh", "-c", "echo yes: no; # no comment"],
    environment: { N: "1", ON: "yes", type: "SESSION_TYPE_BATCH" },
    slots: { cpu: "2", mem: "64m" },
    isolation: Isolation.VM,
  },
  timeLimit: { seconds: 90n, nanos: 0 },
  labels: { number: "007" },
});

it("writes what it reads again", () => {
  const text = yamlOf(SPEC);
  expect(text).toContain("type: batch\n");
  expect(text).toContain("clusterMode: multi-node\n");
  expect(equals(SessionSpecSchema, specOfText(text), SPEC)).toBe(true);
});

it("reads what manifests have: numbers as amounts, long names of enums, nothing", () => {
  const spec = specOfText("type: SESSION_TYPE_BATCH\nkernel: {slots: {cpu: 0.5}, environment: {N: 1}}\n");
  expect(spec.type).toBe(SessionType.BATCH);
  expect(spec.kernel?.slots).toEqual({ cpu: "0.5" });
  expect(spec.kernel?.environment).toEqual({ N: "1" });
  expect(equals(SessionSpecSchema, specOfText(""), create(SessionSpecSchema))).toBe(true);
});

it.each(["- a list", "type: nothing", "unknown: 1", "a: [1", "text"])("refuses %j", (text) => {
  expect(() => specOfText(text)).toThrow();
});

it("compares texts by lines", () => {
  const lines = compared("a\nb\nc\nd\ne\nf", "a\nb\nc\nX\ne\nf");
  expect(lines.map(({ kind, text }) => kind[0] + text).join(" ")).toBe("sa sb sc rd aX se sf");
  expect(around(lines, 1).map(({ text }) => text)).toEqual(["c", "d", "X", "e"]);
  expect(around(compared("a", "a"), 2)).toEqual([]);
  expect(compared("a\n", "a")).toEqual([{ kind: "same", text: "a" }]);
  expect(compared("", "")).toEqual([]);
});
