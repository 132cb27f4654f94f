import { expect, it } from "vitest";
import { parse } from "yaml";
import { yaml } from "../src/spec/yaml";

it("writes texts of many lines as blocks, and plain words without quotes", () => {
  const text = yaml({ name: "train", bootstrap_script: "#!/bin/sh\necho one\n", slots: { cpu: "1.5", mem: "256m" } });
  expect(text).toContain("name: train\n");
  expect(text).toContain("bootstrap_script: |\n");
  expect(text).toContain('cpu: "1.5"\n');
  expect(text).toContain("mem: 256m\n");
});

it.each([
  "yes",
  "1e3",
  "0x1f",
  "a: b",
  "- a",
  "a #b",
  "",
  " a",
  "*a",
  "&a",
  "!a",
  "{a",
  "[a",
  "12:30",
  "@a",
  "%a",
  "null",
  "\u0007",
])("writes %j as text to readers of either version", (text) => {
  for (const version of ["1.1", "1.2"] as const) expect(parse(yaml({ key: text }), { version })).toEqual({ key: text });
});
