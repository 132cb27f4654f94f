import { expect, it } from "vitest";
import { atLeast, levelOf, matchesIn } from "../src/logs/levels";

it.each([
  ["2026-01-01 12:00:00 ERROR something", "error"],
  ["level=warn msg=error-free", "warning"],
  ["[INFO] no error here", "info"],
  ["E0102 12:00:00.0 kubelet.go:1] x", "error"],
  ["terror and swarms", undefined],
  [`${"x ".repeat(60)} error`, undefined],
])("reads the level of %j", (line, level) => {
  expect(levelOf(line)).toBe(level);
});

it("keeps the lines of a trace with the line that names its level", () => {
  const lines = ["INFO begins", "ERROR failed", "  at one", "  at two", "plain", "DEBUG details"];
  expect(atLeast(lines, "warning")).toEqual(["ERROR failed", "  at one", "  at two"]);
});

it("cuts a text at what is searched", () => {
  expect(matchesIn("One two ONE", "one")).toEqual(["", "One", " two ", "ONE", ""]);
  expect(matchesIn("text", "")).toEqual(["text"]);
});
