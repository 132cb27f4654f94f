import type { Agent } from "../gen/retinue/manager/v1/fleet_service_pb";
import type { KernelPlacement } from "../gen/retinue/manager/v1/session_service_pb";
import { amount } from "../text/format";
import { slotOrder, takesKernels } from "./sizes";

/** One slot of a node, as parts of all that it has, from 0 to 1. */
export interface Bar {
  slot: string;
  used: number;
  planned: number;
  capacity: number;
  /** What is neither used nor planned, as an amount. */
  free: number;
}

/** A node as it is drawn. */
export interface NodeBox {
  agent: string;
  takesKernels: boolean;
  bars: Bar[];
  /** Hostnames of the kernels that would be placed here. */
  kernels: string[];
}

/** The most slots of a node that are drawn. */
const SHOWN = 4;

/**
 * Draws the nodes of a group with what the kernels of a request would take. Those that would get kernels come first,
 * then those with most free.
 */
export function nodeBoxes(
  agents: readonly Agent[],
  placements: readonly KernelPlacement[],
  slots: Readonly<Record<string, string>>,
): NodeBox[] {
  const boxes = agents.map((agent): NodeBox => {
    const kernels = placements.filter((kernel) => kernel.agent === agent.id).map((kernel) => kernel.hostname);
    const names = slotOrder(Object.keys(agent.capacity)).filter((slot) => amount(agent.capacity[slot] ?? "") > 0);
    const bars = names.slice(0, SHOWN).map((slot) => {
      const capacity = amount(agent.capacity[slot] ?? "0");
      const used = amount(agent.occupied[slot] ?? "0");
      const planned = (amount(slots[slot] ?? "0") || 0) * kernels.length;
      return {
        slot,
        capacity,
        used: Math.min(1, used / capacity),
        planned: Math.min(Math.max(0, 1 - used / capacity), planned / capacity),
        free: Math.max(0, capacity - used - planned),
      };
    });
    return { agent: agent.id, takesKernels: takesKernels(agent), bars, kernels };
  });
  const room = (box: NodeBox) => box.bars.reduce((sum, bar) => sum + 1 - bar.used, 0);
  return boxes.sort(
    (one, other) =>
      Number(other.kernels.length > 0) - Number(one.kernels.length > 0) ||
      Number(other.takesKernels) - Number(one.takesKernels) ||
      room(other) - room(one) ||
      one.agent.localeCompare(other.agent, undefined, { numeric: true }),
  );
}
