import { expect, it } from "vitest";
import { layers } from "../src/live/layers";

it("puts each node after all that it comes after", () => {
  const nodes = [
    { id: "d", after: ["b", "c"] },
    { id: "b", after: ["a"] },
    { id: "c", after: ["b"] },
    { id: "a", after: ["gone"] },
  ];
  expect(layers(nodes)).toEqual([["a"], ["b"], ["c"], ["d"]]);
});

it("ends with a cycle, which no server sends", () => {
  expect(
    layers([
      { id: "a", after: ["b"] },
      { id: "b", after: ["a"] },
    ]),
  ).toEqual([["a", "b"]]);
});
