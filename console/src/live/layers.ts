/**
 * Puts the nodes of a graph without cycles into columns: each is in the first one after all that it comes after
 * (longest-path layering). Nodes that are not there are left out; those of a cycle come last.
 */
export function layers(nodes: readonly { id: string; after: readonly string[] }[]): string[][] {
  const known = new Set(nodes.map(({ id }) => id));
  const waiting = new Map(nodes.map(({ id, after }) => [id, new Set(after.filter((before) => known.has(before)))]));
  const columns: string[][] = [];
  while (waiting.size > 0) {
    const ready = [...waiting].filter(([, after]) => after.size === 0).map(([id]) => id);
    const column = ready.length > 0 ? ready : [...waiting.keys()];
    columns.push(column);
    for (const id of column) waiting.delete(id);
    for (const after of waiting.values()) for (const id of column) after.delete(id);
  }
  return columns;
}
