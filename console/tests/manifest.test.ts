import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { AccessMode, AppProtocol, EndpointSpecSchema } from "../src/gen/retinue/manager/v1/endpoint_pb";
import { PullPolicy } from "../src/gen/retinue/types/v1/pull_policy_pb";
import { EMPTY_ENDPOINT, endpointOf } from "../src/spec/endpoint_form";
import { endpointIn, manifestOf, UnreadableManifest } from "../src/spec/manifest";

const FILE = `
kind: endpoint
name: llm
revision:
  port: 8000
  maxConcurrency: 8
  readiness: {http: {path: /health}}
  start_timeout: 1h30m
  session:
    kernel:
      image: my/model
      pullPolicy: always
      command: [serve, --threads, 4, true, 007]
      slots: {cpu: 2, mem: 4g}
      environment: {DEBUG: false, SEED: 0x10}
scaling: {min: 0, max: 10, holdDown: 90}
access: {mode: public}
rollout: {canary: {steps: [{percent: 10, hold: 300s}]}}
`;

function mistakesOf(text: string): string[] {
  try {
    endpointIn(text);
  } catch (error) {
    if (error instanceof UnreadableManifest) return error.mistakes.map(({ line, text: words }) => `${line}: ${words}`);
    throw error;
  }
  return [];
}

it("reads a file as the command line does", () => {
  const spec = endpointIn(FILE);
  expect(spec.name).toBe("llm");
  expect(spec.revision?.startTimeout?.seconds).toBe(5400n);
  const kernel = spec.revision?.session?.kernel;
  expect(kernel?.pullPolicy).toBe(PullPolicy.ALWAYS);
  // What looks like a number or a truth value is text all the same, as it is written.
  expect(kernel?.command).toEqual(["serve", "--threads", "4", "true", "007"]);
  expect(kernel?.slots).toEqual({ cpu: "2", mem: "4g" });
  expect(kernel?.environment).toEqual({ DEBUG: "false", SEED: "0x10" });
  expect(spec.scaling?.min).toBe(0);
  expect(spec.scaling?.holdDown?.seconds).toBe(90n);
  expect(spec.access?.mode).toBe(AccessMode.PUBLIC);
  expect(spec.rollout?.strategy.case).toBe("canary");
});

it("reads what `get -o yaml` prints, and JSON", () => {
  expect(endpointIn("id: x\nspec: {name: a, revision: {protocol: APP_PROTOCOL_GRPC}}\nstate: READY").name).toBe("a");
  expect(endpointIn('{"name": "a", "revision": {"protocol": "grpc"}}').revision?.protocol).toBe(AppProtocol.GRPC);
});

it("says every mistake with its line", () => {
  expect(
    mistakesOf("name: a\nrevison: {}\nscaling:\n  min: [1]\naccess: {mode: all}\nrollout: {progressTimeout: soon}"),
  ).toEqual([
    "2: unknown field revison of EndpointSpec",
    "4: min must be a single value",
    "5: mode must be one of public, token",
    "6: progressTimeout must be a time such as 30s, 5m or 2h, not soon",
  ]);
  expect(mistakesOf("kind: session\nname: a")).toEqual(["1: kind must be endpoint"]);
  expect(mistakesOf("name: a\n---\nname: b")).toEqual(["1: there must be one endpoint in it"]);
  expect(mistakesOf("name: a\nname: b")).toEqual(["2: name is there twice"]);
  expect(mistakesOf("name: a\nrevision: {port: &p 1}\nscaling: {min: *p}")).toEqual(["3: min must be a single value"]);
  expect(mistakesOf("# nothing")).toEqual(["1: there must be one endpoint in it"]);
  expect(mistakesOf("name: a\nscaling:\n  - [b")).toEqual([expect.stringMatching(/^3: /)]);
  expect(mistakesOf("just words")).toEqual(["1: there must be fields here"]);
});

it("writes what it reads", () => {
  const spec = endpointIn(FILE);
  const text = manifestOf(spec);
  expect(text).toContain("mode: public");
  expect(text).toContain("pullPolicy: always");
  expect(endpointIn(text)).toEqual(spec);
  expect(manifestOf(create(EndpointSpecSchema, { name: "a" }))).toBe("name: a\n");
});

it("writes a form as a file", () => {
  const spec = endpointOf({ ...EMPTY_ENDPOINT, name: "web", command: "serve --port 8000", strategy: "canary" });
  expect(endpointIn(manifestOf(spec))).toEqual(spec);
  expect(spec.revision?.session?.kernel?.command).toEqual(["serve", "--port", "8000"]);
});
