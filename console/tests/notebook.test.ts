import { expect, it } from "vitest";
import { notebookFile, readNotebook } from "../src/spec/notebook";

it("reads what it has written", () => {
  const file = notebookFile(
    [
      { kind: "code", source: "x = 1\nx", outputs: [{ kind: "text", text: "1\n", error: false }] },
      { kind: "text", source: "# Title", outputs: [] },
    ],
    "python",
  );
  expect(readNotebook(file)).toEqual({
    cells: [
      { kind: "code", source: "x = 1\nx", outputs: [] },
      { kind: "text", source: "# Title", outputs: [] },
    ],
    language: "python",
  });
  const [first] = JSON.parse(file).cells;
  expect(first.source).toEqual(["x = 1\n", "x"]);
  expect(first.outputs).toEqual([{ output_type: "stream", name: "stdout", text: ["1\n"] }]);
});

it.each(["", "{", "[]", "null", '{"cells": 1}', '{"cells": [], "nbformat": 3}'])("refuses %j", (text) => {
  expect(readNotebook(text)).toBeUndefined();
});
