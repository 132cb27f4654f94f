import { create } from "@bufbuild/protobuf";
import { type Duration, DurationSchema } from "@bufbuild/protobuf/wkt";

const SECONDS: readonly [string, number][] = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];

/** Writes a length of time so that it reads back as the same: `7d`, `1h 30m`, `0.5s`; nothing for what is not set. */
export function durationText(duration: Duration | undefined): string {
  if (duration === undefined) return "";
  let rest = Number(duration.seconds);
  const parts: string[] = [];
  for (const [unit, length] of SECONDS) {
    const whole = Math.floor(rest / length);
    rest -= whole * length;
    const part = unit === "s" ? whole + duration.nanos / 1e9 : whole;
    if (part > 0) parts.push(`${part}${unit}`);
  }
  return parts.join(" ") || "0s";
}

/** Reads `90s`, `30m`, `1h 30m` or `7d`; undefined for nothing, NaN for anything else. */
export function durationSeconds(text: string): number | undefined {
  const words = text.trim().toLowerCase();
  if (words === "") return undefined;
  if (!/^(\d+(\.\d+)?\s*[dhms]\s*)+$/.test(words)) return Number.NaN;
  let seconds = 0;
  for (const [, count, unit] of words.matchAll(/(\d+(?:\.\d+)?)\s*([dhms])/g)) {
    seconds += Number(count) * (SECONDS.find(([name]) => name === unit)?.[1] ?? Number.NaN);
  }
  return seconds;
}

export function durationOf(seconds: number): Duration {
  const whole = Math.floor(seconds);
  return create(DurationSchema, { seconds: BigInt(whole), nanos: Math.round((seconds - whole) * 1e9) });
}
