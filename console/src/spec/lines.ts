export interface Line {
  kind: "same" | "added" | "removed";
  text: string;
}

/**
 * Compares two texts line by line: the longest common part stays. Meant for texts of some hundred lines. The end of a
 * text is none of its lines, whether a newline is before it or not.
 */
export function compared(before: string, after: string): Line[] {
  const old = linesOf(before);
  const now = linesOf(after);
  // lengths[i][j]: how many lines the rests from i and j have in common.
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  const at = (row: number, column: number) => lengths[row]?.[column] ?? 0;
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      const row = lengths[i];
      if (row === undefined) continue;
      row[j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    const gone = old[i];
    const come = now[j];
    if (gone !== undefined && gone === come) {
      lines.push({ kind: "same", text: gone });
      i++;
      j++;
    } else if (gone !== undefined && (come === undefined || at(i + 1, j) >= at(i, j + 1))) {
      lines.push({ kind: "removed", text: gone });
      i++;
    } else if (come !== undefined) {
      lines.push({ kind: "added", text: come });
      j++;
    }
  }
  return lines;
}

function linesOf(text: string): string[] {
  return text === "" ? [] : text.replace(/\n$/, "").split("\n");
}

/** Leaves out what is the same, but for some lines around what is not. */
export function around(lines: readonly Line[], near: number): Line[] {
  return lines.filter((line, at) => {
    if (line.kind !== "same") return true;
    return lines.slice(Math.max(0, at - near), at + near + 1).some((other) => other.kind !== "same");
  });
}
