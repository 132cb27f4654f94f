// biome-ignore-all lint/a11y/useSemanticElements: rows that a script places are not those of a table element
// biome-ignore-all lint/a11y/useFocusableInteractive: rows are read, and what is in them is focused
// biome-ignore-all lint/a11y/useKeyWithClickEvents: keys move between rows wherever the focus is
import { Ellipsis } from "lucide-react";
import { memo } from "react";
import { Link } from "react-router";
import { Button } from "../../design/button";
import { classes } from "../../design/classes";
import { Tick } from "../../design/fields";
import type { Session } from "../../gen/retinue/manager/v1/session_pb";
import { shownState } from "../../live/state";
import { ConditionMark, StateMark } from "../../parts/basics";
import { t } from "../../text/language";
import { COLUMNS, type ColumnId, cell, secondLine } from "./columns";

export const HEIGHT = 38;
/** On a telephone a row has two lines: what is no column there is on the second. */
export const TALL = 58;
export const GRID = "grid grid-cols-(--tracks) items-center gap-2.5 border-b border-line px-3";

export interface RowActions {
  toggle: (id: string) => void;
  focus: (id: string) => void;
  openMenu: (id: string, anchor: Element) => void;
}

interface RowProps {
  session: Session;
  columns: readonly ColumnId[];
  narrow: boolean;
  top: number;
  index: number;
  focused: boolean;
  selected: boolean;
  age: string;
  actions: RowActions;
}

/** One session. It is drawn again only when something of it has changed. */
export const Row = memo(function Row({ session, columns, narrow, actions, ...props }: RowProps) {
  const name = session.spec?.name || session.id;
  const second = narrow ? secondLine(session, props.age) : undefined;
  return (
    <div
      role="row"
      aria-rowindex={props.index + 2}
      className={classes(
        "row absolute inset-x-0 top-0 hover:bg-sunken/70",
        GRID,
        props.selected && "bg-accent-soft",
        props.focused && "focused bg-sunken inset-ring-2 inset-ring-accent/50",
      )}
      data-session={session.id}
      style={{ transform: `translateY(${props.top}px)`, height: narrow ? TALL : HEIGHT }}
      onClick={() => actions.focus(session.id)}
    >
      <span role="cell" className="flex">
        <Tick label={name} checked={props.selected} onChange={() => actions.toggle(session.id)} />
      </span>
      <span role="cell" className="min-w-0">
        <span className="flex items-center gap-1.5">
          <Link to={`/sessions/${session.id}`} title={name} className="truncate font-medium text-ink hover:text-accent">
            {name}
          </Link>
          <ConditionMark conditions={session.conditions} />
        </span>
        {second && (
          <span className="block truncate text-xs text-quiet" title={second.title}>
            {second.content}
          </span>
        )}
      </span>
      <span role="cell">
        <StateMark shown={shownState(session)} />
      </span>
      {!narrow &&
        columns.map((column) => {
          const { content, title } = cell(column, session, props.age);
          return (
            <span
              key={column}
              role="cell"
              title={title}
              className={classes(
                "truncate",
                COLUMNS[column].numeric && "text-right tabular-nums",
                column === "why" && "pl-2 text-sm text-quiet",
              )}
            >
              {content}
            </span>
          );
        })}
      <span role="cell" className="flex justify-end">
        <Button
          look="quiet"
          size="small"
          aria-label={t("rowActions", { name })}
          aria-haspopup="menu"
          className="w-7"
          onClick={(event) => actions.openMenu(session.id, event.currentTarget)}
        >
          <Ellipsis size={16} aria-hidden="true" />
        </Button>
      </span>
    </div>
  );
});
