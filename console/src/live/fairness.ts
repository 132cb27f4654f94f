import { timestampDate } from "@bufbuild/protobuf/wkt";
import type { Series } from "../design/chart";
import type { Share, ShareHistory, ShareKind } from "../gen/retinue/manager/v1/fleet_service_pb";
import type { Session } from "../gen/retinue/manager/v1/session_pb";
import { amount } from "../text/format";

/** The part of its dominant slot that an owner holds, from 0 to 1. */
export function portion(share: Share): number {
  return share.denominator > 0n ? Number(share.numerator) / Number(share.denominator) : 0;
}

/** What the scheduler compares: who has the least is next. */
export function weighted(share: Share): number {
  return portion(share) / Math.max(1, share.weight);
}

export interface ProjectShare {
  project: string;
  /** From 0 to 1: of each member, the part of the member's share that is held in this project. */
  portion: number;
  members: { share: Share; portion: number }[];
}

/**
 * Owners under the projects that they hold something in. An owner's share is split by what the owner's sessions of a
 * project hold of the dominant slot; an owner whose sessions are not known is under no name.
 */
export function byProject(shares: readonly Share[], sessions: readonly Session[], group: string): ProjectShare[] {
  const held = new Map<string, Map<string, number>>();
  const dominant = new Map(shares.map(({ owner, dominantSlot }) => [owner, dominantSlot]));
  for (const session of sessions) {
    const slot = dominant.get(session.owner);
    if (slot === undefined || (session.spec?.resourceGroup || "default") !== group) continue;
    const projects = held.get(session.owner) ?? new Map<string, number>();
    held.set(session.owner, projects);
    for (const kernel of session.kernels) {
      if (kernel.agent === "") continue;
      const value = amount(kernel.slots[slot] ?? "");
      const project = session.spec?.project ?? "";
      if (value > 0) projects.set(project, (projects.get(project) ?? 0) + value);
    }
  }
  const found = new Map<string, ProjectShare>();
  for (const share of shares) {
    const projects = held.get(share.owner) ?? new Map<string, number>();
    const sum = [...projects.values()].reduce((total, value) => total + value, 0);
    const parts: [string, number][] = sum > 0 ? [...projects] : [["", 1]];
    for (const [project, value] of parts) {
      const entry = found.get(project) ?? { project, portion: 0, members: [] };
      const part = portion(share) * (sum > 0 ? value / sum : 1);
      entry.portion += part;
      entry.members.push({ share, portion: part });
      found.set(project, entry);
    }
  }
  for (const entry of found.values()) entry.members.sort((one, other) => other.portion - one.portion);
  return [...found.values()].sort((one, other) => other.portion - one.portion);
}

/**
 * Lines in percent of the largest histories of a kind. What users hold is divided by their weights, as the scheduler
 * compares it. Where no manager led for longer than an interval, a line is broken.
 */
export function shareLines(
  histories: readonly ShareHistory[],
  kind: ShareKind,
  interval: number,
  most: number,
  nameOf: (history: ShareHistory) => string,
): Series[] {
  return histories
    .filter((history) => history.kind === kind)
    .slice(0, most)
    .map((history) => {
      const points: [number, number | null][] = [];
      for (const { startTime, share } of history.points) {
        if (startTime === undefined) continue;
        const time = timestampDate(startTime).getTime() / 1000;
        const last = points.at(-1)?.[0];
        if (last !== undefined && time - last > 1.5 * interval) points.push([last + interval, null]);
        points.push([time, (100 * share) / Math.max(1, history.weight)]);
      }
      return { name: nameOf(history), points };
    });
}
