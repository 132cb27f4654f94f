import type { Agent } from "../gen/retinue/manager/v1/fleet_service_pb";
import { AgentState } from "../gen/retinue/manager/v1/fleet_service_pb";
import { amount, BYTE_SLOTS, bytes, COMMON_SLOTS } from "../text/format";

/** What the nodes of a group have of one slot. */
export interface SlotRange {
  /** Of the largest node. */
  most: number;
  /** On the node with most of it free. */
  free: number;
  /** Free on all nodes together. */
  freeInAll: number;
  /** On all nodes together. */
  all: number;
}

/** Nodes that take kernels now. */
export function takesKernels(agent: Agent): boolean {
  return (
    agent.state === AgentState.ALIVE &&
    !agent.drained &&
    !agent.conditions.some((condition) => condition.blocksPlacement)
  );
}

export function slotRanges(agents: readonly Agent[]): Map<string, SlotRange> {
  const ranges = new Map<string, SlotRange>();
  for (const agent of agents.filter(takesKernels)) {
    for (const [slot, capacity] of Object.entries(agent.capacity)) {
      const range = ranges.get(slot) ?? { most: 0, free: 0, freeInAll: 0, all: 0 };
      const all = amount(capacity);
      const free = Math.max(0, all - amount(agent.occupied[slot] ?? "0"));
      ranges.set(slot, {
        most: Math.max(range.most, all),
        free: Math.max(range.free, free),
        freeInAll: range.freeInAll + free,
        all: range.all + all,
      });
    }
  }
  return ranges;
}

/** Slots in the order in which they are shown: those that every node has first. */
export function slotOrder(slots: Iterable<string>): string[] {
  const others = [...slots].filter((slot) => !COMMON_SLOTS.includes(slot)).sort();
  return [...COMMON_SLOTS, ...others];
}

const MEBIBYTE = 1024 ** 2;

/** How far one step of a slider goes: about a hundredth of the largest node, in amounts that people write. */
export function stepOf(slot: string, most: number): number {
  if (BYTE_SLOTS.has(slot)) return Math.max(MEBIBYTE, 2 ** Math.floor(Math.log2(Math.max(1, most / 64))));
  if (slot.endsWith(".device")) return 1;
  return most > 8 ? 1 : 0.5;
}

/** Writes an amount as the contract reads it, in the largest unit that keeps it exact. */
export function written(slot: string, value: number): string {
  if (!BYTE_SLOTS.has(slot)) return String(Math.round(value * 1000) / 1000);
  const whole = Math.round(value);
  for (const [power, unit] of [
    [4, "t"],
    [3, "g"],
    [2, "m"],
    [1, "k"],
  ] as const) {
    if (whole > 0 && whole % 1024 ** power === 0) return `${whole / 1024 ** power}${unit}`;
  }
  return String(whole);
}

export const SIZES = ["small", "medium", "large", "whole"] as const;
export type Size = (typeof SIZES)[number];
const SHARES: Record<Size, number> = { small: 1 / 8, medium: 1 / 4, large: 1 / 2, whole: 1 };

/** Amounts of each size: parts of the largest node of the group. Sizes that would be the same are there once. */
export function sizesOf(ranges: ReadonlyMap<string, SlotRange>): { size: Size; slots: Record<string, string> }[] {
  const sizes: { size: Size; slots: Record<string, string> }[] = [];
  for (const size of SIZES) {
    const slots: Record<string, string> = {};
    for (const slot of COMMON_SLOTS) {
      const range = ranges.get(slot);
      if (range === undefined) continue;
      const share = range.most * SHARES[size];
      const step = stepOf(slot, range.most);
      const value = size === "whole" ? share : Math.max(step, Math.floor(share / step) * step);
      slots[slot] = written(slot, Math.min(value, range.most));
    }
    if (Object.keys(slots).length === 0) continue;
    if (sizes.some((known) => JSON.stringify(known.slots) === JSON.stringify(slots))) continue;
    sizes.push({ size, slots });
  }
  return sizes;
}

/** Which size a request has; undefined when it has none of them. */
export function sizeOf(
  sizes: readonly { size: Size; slots: Record<string, string> }[],
  slots: Record<string, string>,
): Size | undefined {
  const given = Object.entries(slots).filter(([, value]) => value.trim() !== "");
  return sizes.find(
    (size) =>
      given.length === Object.keys(size.slots).length &&
      given.every(([slot, value]) => amount(value) === amount(size.slots[slot] ?? "")),
  )?.size;
}

export function times(slots: Record<string, string>, count: number): Record<string, string> {
  const entries = Object.entries(slots).filter(([, value]) => !Number.isNaN(amount(value)));
  return Object.fromEntries(entries.map(([slot, value]) => [slot, written(slot, amount(value) * count)]));
}

/** An amount with its unit, to be read beside a slider. */
export function spoken(slot: string, value: number): string {
  return BYTE_SLOTS.has(slot) ? bytes(value) : String(Math.round(value * 1000) / 1000);
}
