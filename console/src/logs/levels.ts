export type Level = "error" | "warning" | "info" | "debug";

const WORDS: [Level, RegExp][] = [
  ["error", /\b(?:error|err|fatal|critical|panic|exception|traceback|severe|emerg)\b|\b[EF]\d{4} /i],
  ["warning", /\b(?:warning|warn)\b|\bW\d{4} /i],
  ["info", /\b(?:info|notice)\b|\bI\d{4} /i],
  ["debug", /\b(?:debug|trace|verbose)\b|\bD\d{4} /i],
];
/** Programs write the level near the beginning, behind a time and a name. */
const BEGINNING = 80;
const RANK: Record<Level, number> = { error: 3, warning: 2, info: 1, debug: 0 };

/** The level that a line of a log names near its beginning; the word that comes first counts. */
export function levelOf(line: string): Level | undefined {
  const head = line.slice(0, BEGINNING);
  let found: Level | undefined;
  let at = Number.POSITIVE_INFINITY;
  for (const [level, words] of WORDS) {
    const place = head.search(words);
    if (place >= 0 && place < at) [found, at] = [level, place];
  }
  return found;
}

/** Whether a line is at this level or above it. A line that names none belongs to the one before it. */
export function atLeast(lines: readonly string[], least: Level): string[] {
  let level: Level | undefined;
  return lines.filter((line) => {
    const own = levelOf(line);
    // A trace's lines are indented below the line that names the level.
    if (own !== undefined) level = own;
    else if (!/^\s/.test(line)) level = undefined;
    return level !== undefined && RANK[level] >= RANK[least];
  });
}

/** Cuts a text at each place where the words are; every second part is a match. */
export function matchesIn(text: string, words: string): string[] {
  if (words === "") return [text];
  const parts: string[] = [];
  const lower = text.toLowerCase();
  const wanted = words.toLowerCase();
  // Where lower case has another length, places would not be the same.
  if (lower.length !== text.length) return [text];
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), text.slice(at, at + wanted.length));
    from = at + wanted.length;
  }
  parts.push(text.slice(from));
  return parts;
}
