import { dump, EVENT_ID, getScalarValue, parseEvents, SCALAR_STYLE, YAMLException } from "js-yaml";

/** A part of a text of YAML; `line` is where it begins, from 1. */
export type Node =
  | { kind: "map"; line: number; entries: Entry[] }
  | { kind: "list"; line: number; items: Node[] }
  /** `plain` has no quotes: `no`, `5` and `null` may be no text then. */
  | { kind: "scalar"; line: number; text: string; plain: boolean }
  | { kind: "alias"; line: number };

export interface Entry {
  key: Node;
  value: Node;
}

/** Why a text is no YAML; `line` is from 1. */
export class NotYaml extends Error {
  constructor(
    readonly line: number,
    reason: string,
  ) {
    super(reason);
  }
}

const NULL = /^(|~|null|Null|NULL)$/;

export function isNull(node: Node): boolean {
  return node.kind === "scalar" && node.plain && NULL.test(node.text);
}

/** Returns the documents of a text, or of JSON; scalars stay as they are written. Throws NotYaml. */
export function nodesOf(text: string): Node[] {
  const line = lines(text);
  const documents: Node[] = [];
  // What is open around the next node, and the key that waits for its value.
  const open: { node: Node; key?: Node }[] = [];
  // Where nothing is written, a value is where the last thing was.
  let last = 1;
  const put = (node: Node): void => {
    last = node.line;
    const around = open.at(-1);
    if (around === undefined) documents.push(node);
    else if (around.node.kind === "list") around.node.items.push(node);
    else if (around.node.kind === "map") {
      if (around.key === undefined) around.key = node;
      else {
        around.node.entries.push({ key: around.key, value: node });
        delete around.key;
      }
    }
  };
  for (const event of events(text)) {
    if (event.type === EVENT_ID.DOCUMENT) open.length = 0;
    else if (event.type === EVENT_ID.POP) open.pop();
    else if (event.type === EVENT_ID.ALIAS) put({ kind: "alias", line: line(event.anchorStart) });
    else if (event.type === EVENT_ID.SCALAR) {
      const at = event.valueStart < 0 ? last : line(event.valueStart);
      put({
        kind: "scalar",
        line: at,
        text: getScalarValue(text, event),
        plain: event.style === SCALAR_STYLE.PLAIN && event.tagStart < 0,
      });
    } else {
      const at = line(event.start);
      const node: Node =
        event.type === EVENT_ID.MAPPING
          ? { kind: "map", line: at, entries: [] }
          : { kind: "list", line: at, items: [] };
      put(node);
      open.push({ node });
    }
  }
  return documents;
}

function events(text: string) {
  try {
    return parseEvents(text, {});
  } catch (error) {
    if (!(error instanceof YAMLException)) throw error;
    throw new NotYaml((error.mark?.line ?? 0) + 1, error.reason);
  }
}

/** Returns a function from an offset in a text to its line, from 1. */
function lines(text: string): (offset: number) => number {
  const ends = [...text.matchAll(/\n/g)].map((match) => match.index);
  return (offset) => {
    let low = 0;
    let high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((ends[middle] ?? 0) < offset) low = middle + 1;
      else high = middle;
    }
    return low + 1;
  };
}

/** Writes what JSON can hold. Readers of YAML 1.1 and of 1.2 take it for the same: `yes` is a text to both. */
export function yaml(value: unknown): string {
  return dump(value, { seqNoIndent: true, lineWidth: -1, quoteStyle: "double", noRefs: true });
}
