import { expect, it } from "vitest";
import { pieces } from "../src/logs/ansi";
import { LogLines } from "../src/logs/lines";

const text = (line: string) =>
  pieces(line)
    .map((piece) => piece.text)
    .join("");

it("keeps colours", () => {
  expect(pieces("a \x1b[1;31mred\x1b[0m b")).toEqual([
    { text: "a ", look: "" },
    { text: "red", look: "bold fg1" },
    { text: " b", look: "" },
  ]);
});

it("does not read the numbers of a palette as codes", () => {
  expect(pieces("\x1b[38;5;31mx")).toEqual([{ text: "x", look: "" }]);
  expect(pieces("\x1b[48;2;31;32;33;1mx")).toEqual([{ text: "x", look: "bold" }]);
});

it.each([
  ["\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07", "link"],
  ["\x1b]52;c;aGk=\x07x", "x"],
  ["\x1b[2J\x1b[10;10Hx", "x"],
  ["a\x1b(Bb", "a(Bb"],
  ["a\u202eb", "ab"],
  ["a\x00\x08b", "ab"],
])("drops what would move, link or hide: %j", (line, shown) => {
  expect(text(line)).toBe(shown);
});

it("takes a bomb of sequences in time that grows with its length", () => {
  expect(text(`${"\x1b[31;".repeat(50_000)} end`)).toHaveLength(50_000 * 4 + 2 - 4);
  expect(text("\x1b]".repeat(50_000))).toBe("");
});

it("joins lines over pieces, and shows a line without an end", () => {
  const lines = new LogLines();
  lines.add("one\ntw", 1, 6n);
  lines.add("o\r\nthree", 1, 13n);
  expect(lines.all()).toEqual(["one", "two", "three"]);
  expect(lines.offset).toBe(13n);
});

it("begins a line with another try", () => {
  const lines = new LogLines();
  lines.add("first", 1, 5n);
  lines.add("second\n", 2, 7n);
  expect(lines.all()).toEqual(["first", "second"]);
});

it("breaks a line of a megabyte into pieces", () => {
  const lines = new LogLines();
  lines.add(`${"x".repeat(1 << 20)}\nend\n`, 1, 1n);
  expect(lines.all().length).toBe(65);
  expect(lines.all().at(-1)).toBe("end");
});
