import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { ClusterMode, SessionType } from "../src/gen/retinue/manager/v1/session_pb";
import { RequestChangeSchema } from "../src/gen/retinue/manager/v1/session_service_pb";
import { commandsFor } from "../src/spec/commands";
import { changed, EMPTY, type Form, specOf } from "../src/spec/form";
import { quoted, splitWords, UnreadableText } from "../src/spec/words";

const FULL: Form = {
  ...EMPTY,
  type: SessionType.BATCH,
  clusterMode: ClusterMode.MULTI_NODE,
  clusterSize: "3",
  name: "train",
  command: `python -c 'print("it'"'"'s")' "two words" plain`,
  directory: " /data/run ",
  slots: { cpu: "2", mem: "1g", "cuda.device": " " },
  environment: "A=1\nAPI_TOKEN=abc\nEMPTY=",
  mounts: "/data:/data:rw\n/models:/models",
  ports: "web:http:8000\ndb:5432",
  labels: "team=vision",
  timeLimit: "1.5h",
  attempts: "3",
  dependsOn: "first, second",
};

it("reads what was typed", () => {
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
  ["command", { command: "echo 'open" }],
  ["mounts", { mounts: "/data" }],
  ["mounts", { mounts: "/a:/b:rx" }],
  ["ports", { ports: "web" }],
  ["ports", { ports: "web:http:x" }],
  ["environment", { environment: "=x" }],
  ["clusterSize", { clusterSize: "1.5" }],
  ["timeLimit", { timeLimit: "soon" }],
])("names the field %s that it cannot read", (field, part) => {
  expect(() => specOf({ ...EMPTY, ...part })).toThrow(UnreadableText);
  try {
    specOf({ ...EMPTY, ...part });
  } catch (error) {
    expect((error as UnreadableText).field).toBe(field);
  }
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
