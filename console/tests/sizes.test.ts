import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { AgentSchema, AgentState } from "../src/gen/retinue/manager/v1/fleet_service_pb";
import { nodeBoxes } from "../src/spec/picture";
import { sizeOf, sizesOf, slotRanges, stepOf, times, written } from "../src/spec/sizes";

function node(id: string, capacity: Record<string, string>, occupied: Record<string, string> = {}, drained = false) {
  return create(AgentSchema, { id, state: AgentState.ALIVE, capacity, occupied, drained });
}

const AGENTS = [
  node("n1", { cpu: "16", mem: "64g", disk: "100g" }, { cpu: "10", mem: "8g" }),
  node("n2", { cpu: "8", mem: "64g", disk: "100g", "cuda.device": "2" }, { cpu: "1" }),
  node("n3", { cpu: "64", mem: "512g", disk: "1t" }, {}, true),
];

it("knows what the largest and the freest node have, without those that take nothing", () => {
  expect(slotRanges(AGENTS).get("cpu")).toEqual({ most: 16, free: 7, freeInAll: 13, all: 24 });
});

it("offers sizes as parts of the largest node, each once", () => {
  const sizes = sizesOf(slotRanges(AGENTS));
  expect(sizes.map(({ size, slots }) => [size, slots.cpu, slots.mem])).toEqual([
    ["small", "2", "8g"],
    ["medium", "4", "16g"],
    ["large", "8", "32g"],
    ["whole", "16", "64g"],
  ]);
  expect(sizesOf(slotRanges([node("n", { cpu: "1", mem: "1m" })])).map(({ slots }) => slots.cpu)).toEqual(["0.5", "1"]);
  expect(sizeOf(sizes, { ...sizes[1]?.slots, mem: "16384m" })).toBe("medium");
  expect(sizeOf(sizes, { ...sizes[1]?.slots, "cuda.device": "1" })).toBeUndefined();
});

it.each([
  ["mem", 64 * 1024 ** 2, "64m"],
  ["mem", 1.5 * 1024 ** 3, "1536m"],
  ["mem", 1000, "1000"],
  ["cpu", 0.30000000000000004, "0.3"],
])("writes %s %d so that it stays exact", (slot, value, text) => {
  expect(written(slot, value)).toBe(text);
});

it("takes steps that people write", () => {
  expect(stepOf("mem", 500e9)).toBe(4 * 1024 ** 3);
  expect(stepOf("mem", 100)).toBe(1024 ** 2);
  expect(stepOf("cuda.device", 8)).toBe(1);
  expect(times({ cpu: "0.5", mem: "64m", other: "x" }, 3)).toEqual({ cpu: "1.5", mem: "192m" });
});

it("draws where kernels would go first, and what they would take", () => {
  const boxes = nodeBoxes(
    AGENTS,
    [{ hostname: "main1", agent: "n2" } as never, { hostname: "sub1", agent: "n2" } as never],
    {
      cpu: "2",
    },
  );
  expect(boxes.map(({ agent }) => agent)).toEqual(["n2", "n1", "n3"]);
  expect(boxes[0]?.kernels).toEqual(["main1", "sub1"]);
  expect(boxes[0]?.bars[0]).toEqual({ slot: "cpu", capacity: 8, used: 0.125, planned: 0.5, free: 3 });
  expect(boxes[2]?.takesKernels).toBe(false);
});

it("draws no more than a node has", () => {
  const [box] = nodeBoxes([node("n", { cpu: "2" }, { cpu: "1" })], [{ hostname: "main1", agent: "n" } as never], {
    cpu: "8",
  });
  expect(box?.bars[0]).toEqual({ slot: "cpu", capacity: 2, used: 0.5, planned: 0.5, free: 0 });
});
