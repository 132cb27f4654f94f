import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { language } from "./language";

const UNITS: [string, number][] = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
];

/** Writes a length of time by its two largest units: `2d 3h`, `6m 5s`, `0.8s`. */
export function span(seconds: number): string {
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)}s`;
  const parts: string[] = [];
  let rest = Math.floor(seconds);
  for (const [unit, length] of UNITS) {
    if (rest >= length) parts.push(`${Math.floor(rest / length)}${unit}`);
    rest %= length;
  }
  if (rest > 0) parts.push(`${rest}s`);
  return parts.slice(0, 2).join(" ") || "0s";
}

export function secondsOf(duration: Duration | undefined): number {
  return duration === undefined ? 0 : Number(duration.seconds) + duration.nanos / 1e9;
}

export function between(from: Timestamp, to: Timestamp | undefined, now: number): string {
  const end = to === undefined ? now : timestampDate(to).getTime();
  return span((end - timestampDate(from).getTime()) / 1000);
}

export function clock(time: Timestamp | Date): string {
  const date = time instanceof Date ? time : timestampDate(time);
  return date.toLocaleTimeString(language(), { hour12: false });
}

/** A time beside an axis whose marks are `step` seconds apart: as much of it as tells them apart. */
export function axisTime(time: Date, step: number): string {
  const midnight = time.getHours() === 0 && time.getMinutes() === 0;
  if (step >= 86_400 || (midnight && step >= 3600)) {
    return time.toLocaleDateString(language(), { month: "short", day: "numeric" });
  }
  return step < 60 ? clock(time) : clock(time).slice(0, 5);
}

export function moment(time: Timestamp | undefined): string {
  return time === undefined ? "" : timestampDate(time).toLocaleString(language(), { hour12: false });
}

/** Writes bytes by powers of 1,024. */
export function bytes(count: number): string {
  let value = count;
  for (const unit of ["B", "K", "M", "G", "T"]) {
    if (value < 1024) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)}${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)}P`;
}

const SUFFIXES: Record<string, number> = { k: 1, m: 2, g: 3, t: 4, p: 5 };

/** Reads an amount of the contract; NaN for anything else. */
export function amount(text: string): number {
  const found = /^(\d+(?:\.\d+)?)(?:([kmgtp])(?:i?b)?|b)?$/i.exec(text.trim());
  if (found === null) return Number.NaN;
  return Number(found[1]) * 1024 ** (SUFFIXES[(found[2] ?? "").toLowerCase()] ?? 0);
}

/** Slots that every agent has, in the order in which they are shown. */
export const COMMON_SLOTS: readonly string[] = ["cpu", "mem", "disk"];

/** Slots whose amounts are bytes. */
export const BYTE_SLOTS: ReadonlySet<string> = new Set(["mem", "disk"]);

export function amountText(slot: string, value: number): string {
  return BYTE_SLOTS.has(slot) ? bytes(value) : String(Math.round(value * 1000) / 1000);
}

/** Where a slot is in a list of them: those that every agent has come first. */
export function slotRank(slot: string): number {
  return COMMON_SLOTS.includes(slot) ? COMMON_SLOTS.indexOf(slot) : COMMON_SLOTS.length;
}

/** Writes amounts on one line, processors, memory and disk first. */
export function amounts(slots: Record<string, string>): string {
  return Object.keys(slots)
    .sort((one, other) => slotRank(one) - slotRank(other) || one.localeCompare(other))
    .map((slot) => `${slot} ${amountText(slot, amount(slots[slot] ?? ""))}`)
    .join(" · ");
}
