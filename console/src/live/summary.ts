import { timestampDate } from "@bufbuild/protobuf/wkt";
import { type Session, SessionResult, SessionState } from "../gen/retinue/manager/v1/session_pb";
import { amount, slotRank } from "../text/format";
import { hasEnded } from "./reduce";

const DAY = 24 * 3600 * 1000;

export interface Summary {
  running: readonly Session[];
  starting: number;
  /** Longest first. */
  waiting: readonly Session[];
  /** Newest end first. */
  ended: readonly Session[];
  endedToday: number;
  failedToday: number;
}

/** What a page begins with, of all sessions. */
export function summary(sessions: readonly Session[], now: number): Summary {
  const running: Session[] = [];
  const waiting: Session[] = [];
  const ended: Session[] = [];
  let starting = 0;
  let endedToday = 0;
  let failedToday = 0;
  for (const session of sessions) {
    if (hasEnded(session)) {
      ended.push(session);
      if (now - endOf(session) > DAY) continue;
      endedToday += 1;
      if (session.result === SessionResult.FAILED) failedToday += 1;
    } else if (session.state === SessionState.PENDING) waiting.push(session);
    else {
      running.push(session);
      if (session.state === SessionState.SCHEDULED || session.state === SessionState.PREPARING) starting += 1;
    }
  }
  waiting.sort((one, other) => createdOf(one) - createdOf(other));
  ended.sort((one, other) => endOf(other) - endOf(one));
  return { running, starting, waiting, ended, endedToday, failedToday };
}

function createdOf(session: Session): number {
  return session.createTime ? timestampDate(session.createTime).getTime() : 0;
}

function endOf(session: Session): number {
  return session.endTime ? timestampDate(session.endTime).getTime() : 0;
}

export interface Room {
  slot: string;
  used: number;
  all: number;
}

/** What nodes that take sessions have of each slot together, and how much of it is held. */
export function room(
  nodes: readonly { capacity: Record<string, string>; occupied: Record<string, string> }[],
): readonly Room[] {
  const sums = new Map<string, Room>();
  for (const { capacity, occupied } of nodes)
    for (const [slot, text] of Object.entries(capacity)) {
      const sum = sums.get(slot) ?? { slot, used: 0, all: 0 };
      sum.all += amount(text);
      sum.used += amount(occupied[slot] ?? "0");
      sums.set(slot, sum);
    }
  return [...sums.values()]
    .filter(({ all }) => all > 0)
    .sort((one, other) => slotRank(one.slot) - slotRank(other.slot) || one.slot.localeCompare(other.slot));
}
