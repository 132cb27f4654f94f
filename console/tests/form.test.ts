import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { ClusterMode, type SessionSpec, SessionType } from "../src/gen/retinue/manager/v1/session_pb";
import { RequestChangeSchema } from "../src/gen/retinue/manager/v1/session_service_pb";
import { commandsFor } from "../src/spec/commands";
import { changed, EMPTY, type Form, fromTemplate, pairsOf, readForm, withoutTemplate } from "../src/spec/form";
import { elsewhere, refusalOf, refusalsOf } from "../src/spec/refusals";
import { quoted, splitWords } from "../src/spec/words";

const FULL: Form = {
  ...EMPTY,
  type: SessionType.BATCH,
  clusterMode: ClusterMode.MULTI_NODE,
  clusterSize: "3",
  name: "train",
  command: `python -c 'print("it'"'"'s")' "two words" plain`,
  directory: " /data/run ",
  slots: { cpu: "2", mem: "1g", "cuda.device": " " },
  environment: [
    { name: "A", value: "1" },
    { name: "", value: "" },
    { name: "API_TOKEN", value: "abc" },
    { name: "EMPTY", value: "" },
  ],
  mounts: [
    { source: "/data", target: "/data", writable: true },
    { source: "", target: " ", writable: true },
    { source: " /models ", target: "", writable: false },
  ],
  ports: [
    { name: "web", protocol: "http", number: "8000" },
    { name: "db", protocol: "tcp", number: "5432" },
  ],
  labels: [{ name: "team", value: "vision" }],
  timeLimit: "1.5h",
  attempts: "3",
  dependsOn: ["first", "second"],
};

function specOf(form: Form): SessionSpec {
  const { spec } = readForm(form);
  if (spec === undefined) throw new Error("it cannot be read");
  return spec;
}

it("reads what was typed, without rows that are empty", () => {
  const spec = specOf(FULL);
  expect(spec.clusterSize).toBe(3);
  expect(spec.kernel?.command).toEqual(["python", "-c", `print("it's")`, "two words", "plain"]);
  expect(spec.kernel?.workingDirectory).toBe("/data/run");
  expect(spec.kernel?.slots).toEqual({ cpu: "2", mem: "1g" });
  expect(spec.kernel?.environment).toEqual({ A: "1", API_TOKEN: "abc", EMPTY: "" });
  expect(spec.mounts.map((mount) => [mount.source, mount.target, mount.writable])).toEqual([
    ["/data", "/data", true],
    ["/models", "/models", false],
  ]);
  expect(spec.servicePorts.map((port) => [port.name, port.protocol, port.ports])).toEqual([
    ["web", "http", [8000]],
    ["db", "tcp", [5432]],
  ]);
  expect(spec.timeLimit?.seconds).toBe(5400n);
  expect(spec.retry?.maxAttempts).toBe(3);
  expect(spec.dependsOn).toEqual(["first", "second"]);
});

it.each([
  ["kernel.command", { command: "echo 'open" }],
  ["mounts[0].source", { mounts: [{ source: "", target: "/b", writable: false }] }],
  ["service_ports[0].ports[0]", { ports: [{ name: "web", protocol: "http", number: "" }] }],
  ["service_ports[0].ports[0]", { ports: [{ name: "web", protocol: "http", number: "x" }] }],
  ["kernel.environment['']", { environment: [{ name: "", value: "x" }] }],
  ["labels['a']", { labels: ["1", "2"].map((value) => ({ name: "a", value })) }],
  ["cluster_size", { clusterSize: "1.5" }],
  ["time_limit", { timeLimit: "soon" }],
] as const)("names the field %s that it cannot read", (field, part) => {
  const { spec, refusals } = readForm({ ...EMPTY, ...part });
  expect(spec).toBeUndefined();
  expect(Object.keys(refusals)).toEqual([field]);
});

it("names all fields that it cannot read", () => {
  const { refusals } = readForm({ ...EMPTY, clusterSize: "x", timeLimit: "soon" });
  expect(Object.keys(refusals)).toEqual(["cluster_size", "time_limit"]);
});

it("counts rows of refusals without those that are empty", () => {
  const blank = { name: "", protocol: "http", number: "" } as const;
  const { refusals } = readForm({ ...EMPTY, ports: [blank, { ...blank, number: "x" }] });
  expect(Object.keys(refusals)).toEqual(["service_ports[0].ports[0]"]);
});

it("finds the server's refusals by field, and says the rest", () => {
  const fields = [
    { field: "spec.kernel.slots['cpu']", description: "must be positive" },
    { field: "spec.mounts[1].target", description: "must be absolute" },
    { field: "spec.webhooks[0].url", description: "is refused" },
  ];
  const refusals = refusalsOf({ code: 3, reason: "", message: "", fields });
  expect(refusalOf(refusals, "kernel.slots['cpu']")).toBe("must be positive");
  expect(refusalOf(refusals, "kernel.slots['cpus']")).toBeUndefined();
  expect(refusalOf(refusals, "mounts[0]")).toBeUndefined();
  expect(refusalOf(refusals, "mounts")).toBe("must be absolute");
  expect(elsewhere(refusals, ["kernel.slots", "mounts"])).toEqual(["webhooks[0].url: is refused"]);
});

it("leaves to a template what it has, and takes that back", () => {
  const from = fromTemplate({ ...EMPTY, name: "kept" }, "pair");
  const spec = specOf(from);
  expect([spec.type, spec.clusterMode, spec.clusterSize]).toEqual([0, 0, 0]);
  expect(spec.kernel?.slots).toEqual({});
  expect(spec.template?.name).toBe("pair");
  expect(withoutTemplate(from)).toEqual({ ...EMPTY, name: "kept" });
});

it("reads the lines of a file as rows", () => {
  expect(pairsOf("# comment\nexport A=1\n\nB=x=y\n")).toEqual([
    { name: "A", value: "1" },
    { name: "B", value: "x=y" },
  ]);
  expect(pairsOf("just words")).toEqual([]);
});

it("leaves secrets out of commands", () => {
  for (const text of Object.values(commandsFor(specOf(FULL)))) expect(text).not.toContain("abc");
  expect(commandsFor(specOf(FULL)).cli).toContain('--env "API_TOKEN=$API_TOKEN"');
  expect(commandsFor(specOf(FULL)).python).toContain('"API_TOKEN": os.environ["API_TOKEN"]');
});

it("quotes words so that they are read again", () => {
  for (const word of ["plain", "two words", "it's", "$HOME", "", "a\\b", '"', "`x`", "!", "a\nb", "한"]) {
    expect(splitWords("x", `a ${quoted(word)} b`)).toEqual(["a", word, "b"]);
  }
});

it.each([
  [{ case: "slot", value: { slot: "cpu", amount: "3" } }, { slots: { ...FULL.slots, cpu: "3" } }],
  [{ case: "clusterSize", value: 2 }, { clusterSize: "2" }],
  [{ case: "clusterMode", value: ClusterMode.MULTI_NODE }, { clusterMode: ClusterMode.MULTI_NODE }],
  [{ case: "resourceGroup", value: "other" }, { group: "other" }],
  [{ case: "resourceGroup", value: "default" }, { group: "" }],
] as const)("applies the change %j and leaves the rest", (change, part) => {
  expect(changed(FULL, create(RequestChangeSchema, { change }))).toEqual({ ...FULL, ...part });
});

it("applies no change that it does not know", () => {
  expect(changed(FULL, create(RequestChangeSchema, { text: "wait" }))).toBeUndefined();
});
