import type { ReactNode } from "react";
import { Badge } from "../../design/badge";
import type { Session } from "../../gen/retinue/manager/v1/session_pb";
import { whyOf } from "../../live/reasons";
import type { Column as Order } from "../../live/search";
import { agentsOf, asked, askedOtherwise, clusterTag, sizeOf, total, typeShown } from "../../live/state";
import { amounts } from "../../text/format";
import { type Key, t } from "../../text/language";

export type ColumnId =
  | "type"
  | "where"
  | "use"
  | "owner"
  | "project"
  | "group"
  | "priority"
  | "number"
  | "labels"
  | "age"
  | "why";

interface Column {
  label: Key;
  /** The least width, in rem. */
  least: number;
  /** Its part of what is left of the width; 0 for one that is as wide as it has to be. */
  part: number;
  /** The greatest width, in rem, of one that takes no part. */
  most?: number;
  order?: Order;
  numeric?: true;
}

/** The columns that can be chosen, in their order; before them are the name and the state, always. */
export const COLUMNS: Readonly<Record<ColumnId, Column>> = {
  type: { label: "type", least: 5.25, part: 0, order: "type" },
  where: { label: "where", least: 9, part: 0, most: 15 },
  use: { label: "use", least: 9.25, part: 0.5 },
  owner: { label: "owner", least: 4, part: 0.4, order: "owner" },
  project: { label: "project", least: 5, part: 0.6, order: "project" },
  group: { label: "group", least: 6, part: 0.6, order: "group" },
  priority: { label: "priority", least: 4, part: 0, numeric: true },
  number: { label: "number", least: 4, part: 0, numeric: true },
  labels: { label: "labels", least: 7, part: 1 },
  age: { label: "age", least: 4.75, part: 0, order: "age", numeric: true },
  why: { label: "why", least: 8.25, part: 2.5 },
};
export const KNOWN = Object.keys(COLUMNS) as ColumnId[];
export const USUAL: readonly ColumnId[] = ["type", "where", "use", "owner", "age", "why"];

/** The tick, the name, the state; what was chosen; the menu. */
const BEFORE: readonly Pick<Column, "least" | "part" | "most">[] = [
  { least: 1.25, part: 0 },
  { least: 8, part: 1 },
  { least: 6.25, part: 0 },
];
const AFTER: typeof BEFORE = [{ least: 2, part: 0 }];
const NARROW = ["1.25rem", "minmax(0, 1fr)", "6.25rem", "1.75rem"].join(" ");
/** Between columns, and at both sides, as the grid of a row has them. */
const GAP = 0.625;
const SIDE = 0.75;

/** The tracks of the grid of a row, and the width below which the table scrolls sideways. */
export function layout(columns: readonly ColumnId[], narrow: boolean): { tracks: string; width: string } {
  if (narrow) return { tracks: NARROW, width: "0" };
  const all = [...BEFORE, ...columns.map((column) => COLUMNS[column]), ...AFTER];
  const least = all.reduce((sum, column) => sum + column.least, 0) + GAP * (all.length - 1) + 2 * SIDE;
  return {
    tracks: all
      .map(({ least, part, most }) => `minmax(${least}rem, ${part > 0 ? `${part}fr` : `${most ?? least}rem`})`)
      .join(" "),
    width: `${least}rem`,
  };
}

/** What a session has in a column, as text or marks on one line, and the whole of it as title. */
export function cell(column: ColumnId, session: Session, age: string): { title?: string; content: ReactNode } {
  switch (column) {
    case "type":
      return { content: typeShown(session) };
    case "where":
      return place(session);
    case "use": {
      const { disk: _, ...shown } = total(session);
      const each =
        sizeOf(session) > 1 ? t("eachKernel", { amounts: amounts(asked(session)) }) : amounts(asked(session));
      return { content: <span className="tabular-nums">{amounts(shown)}</span>, title: each };
    }
    case "owner":
      return text(session.owner);
    case "project":
      return text(session.spec?.project ?? "");
    case "group":
      return text(session.spec?.resourceGroup ?? "");
    case "priority":
      return { content: session.spec?.priority };
    case "number":
      return { content: String(session.number) };
    case "labels":
      return text(
        Object.entries(session.spec?.labels ?? {})
          .map(([name, value]) => `${name}=${value}`)
          .join(" "),
      );
    case "age":
      return { content: age };
    case "why": {
      const why = whyOf(session);
      return { content: why.text, title: why.title };
    }
  }
}

/** What a telephone shows below the name: why, else what it is, and for how long. */
export function secondLine(session: Session, age: string): { title?: string; content: ReactNode } {
  const why = whyOf(session);
  if (why.text !== "") return { content: why.text, title: why.title };
  return text([typeShown(session), age].filter(Boolean).join(" · "));
}

function text(words: string) {
  return { content: words, title: words };
}

function place(session: Session): { title: string; content: ReactNode } {
  const agents = agentsOf(session).join(" ");
  if (sizeOf(session) === 1) return text(agents || "–");
  const other = askedOtherwise(session);
  const tag = clusterTag(session);
  return {
    title: [tag, other, agents].filter(Boolean).join(" · "),
    content: (
      <>
        <Badge className="tag">{tag}</Badge>
        {other !== "" && <span className="ml-1.5 text-xs text-quiet">{other}</span>} {agents}
      </>
    ),
  };
}
