import { readFileSync } from "node:fs";
import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { AgentConditionReason, ConditionType, SessionReason } from "../src/gen/retinue/manager/v1/reason_pb";
import { KernelState, SessionSchema } from "../src/gen/retinue/manager/v1/session_pb";
import { firstLine, reasonWords, whyOf } from "../src/live/reasons";
import { en } from "../src/text/en";
import { ko } from "../src/text/ko";

function namesOf(values: Record<string, string | number>): string[] {
  return Object.keys(values).filter((name) => Number.isNaN(Number(name)) && name !== "UNSPECIFIED");
}

const contract = readFileSync(new URL("../../protos/retinue/agent/v1/attempt_reason.proto", import.meta.url), "utf8");
const attempts = Array.from(contract.matchAll(/^ {2}ATTEMPT_REASON_(\w+) = [1-9]/gm), ([, name = ""]) => name);
const reasons = [SessionReason, ConditionType, AgentConditionReason].flatMap(namesOf).concat(attempts);

it("finds the reasons of all enums", () => {
  expect(reasons).toEqual(expect.arrayContaining(["QUOTA", "OOM_KILLED", "UNWRITABLE", "IMAGE_DENIED"]));
});

it.each(reasons)("has words for %s in every language", (reason) => {
  for (const words of [en, ko] as Record<string, string>[]) {
    expect(words[`reason_${reason}`]).toMatch(/^[A-Z\p{Script=Hangul}][^_]+$/u);
  }
});

it("names a reason of a newer server by its name as words", () => {
  expect(reasonWords("MOON_PHASE")).toBe("Moon phase");
});

it("says why in the server's words, with the name of the reason and the whole message in the title", () => {
  const message = "needs 4 cpu on one node; the freest has 1.5 (n2)\nmore";
  const session = create(SessionSchema, { reason: "INSUFFICIENT_CAPACITY", message });
  expect(whyOf(session)).toEqual({
    text: "Needs 4 cpu on one node; the freest has 1.5 (n2)",
    title: `INSUFFICIENT_CAPACITY: ${message}`,
  });
});

it("has words of its own where the server has none", () => {
  expect(whyOf(create(SessionSchema, { reason: "QUOTA" })).text).toBe(reasonWords("QUOTA"));
  expect(whyOf(create(SessionSchema, {})).text).toBe("");
});

it("says how far an image is rather than a reason", () => {
  const pull = { bytes: 30n, totalBytes: 100n };
  const session = create(SessionSchema, { reason: "QUEUED", kernels: [{ state: KernelState.PULLING, pull }] });
  expect(whyOf(session).text).toContain("30");
});

it.each(["main1 exited with 1", "n2-253 is lost", "first-step failed"])("leaves the name that begins %s", (message) => {
  expect(firstLine(message)).toBe(message);
});

it("shortens a long message", () => {
  expect(firstLine("x".repeat(500)).length).toBeLessThan(200);
});
