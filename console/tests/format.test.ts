import { expect, it } from "vitest";
import { amount, amounts, axisTime, bytes, span } from "../src/text/format";

it.each([
  [0.04, "0.0s"],
  [9.96, "10.0s"],
  [59, "59s"],
  [3661, "1h 1m"],
  [90061, "1d 1h"],
  [-1, "0.0s"],
])("writes %d seconds as %s", (seconds, words) => {
  expect(span(seconds)).toBe(words);
});

it.each([
  ["4g", 4 * 1024 ** 3],
  ["512Mib", 512 * 1024 ** 2],
  ["1.5", 1.5],
  ["2GB", 2 * 1024 ** 3],
])("reads the amount %s", (text, value) => {
  expect(amount(text)).toBe(value);
});

it("reads nothing else as an amount", () => {
  for (const text of ["", "x", "1e3", "-1", "0x10"]) expect(amount(text)).toBeNaN();
});

it("writes amounts on one line", () => {
  expect(amounts({ mem: "4g", "cuda.device": "1", cpu: "2" })).toBe("cpu 2 · mem 4.0G · cuda.device 1");
  expect(amounts({ disk: "20g", "cuda.device": "1", mem: "4g" })).toBe("mem 4.0G · disk 20G · cuda.device 1");
  expect(bytes(0)).toBe("0B");
});

it("tells the marks of an axis apart", () => {
  const noon = new Date(2026, 0, 31, 12, 5, 30);
  expect(axisTime(noon, 15)).toBe("12:05:30");
  expect(axisTime(noon, 300)).toBe("12:05");
  expect(axisTime(noon, 86_400)).toBe("Jan 31");
  expect(axisTime(new Date(2026, 0, 31), 21_600)).toBe("Jan 31");
});
