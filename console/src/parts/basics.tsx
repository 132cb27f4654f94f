import { cloneElement, type ReactElement, type ReactNode, useEffect, useId, useRef, useState } from "react";
import type { Problem } from "../api/problem";
import type { Condition } from "../gen/retinue/manager/v1/session_pb";
import type { Shown } from "../live/state";
import { moment } from "../text/format";
import { t } from "../text/language";

export function StateMark({ shown }: { shown: Shown }) {
  return (
    <span className={`state ${shown.look}`}>
      <span aria-hidden="true">{shown.icon}</span> {shown.word}
    </span>
  );
}

/** What is noteworthy, with its type and since when. Several may have one type. */
export function Conditions({ conditions }: { conditions: readonly Condition[] }) {
  return conditions.map((condition) => (
    <p key={`${condition.type} ${condition.message}`} className="condition">
      <code>{condition.type}</code> {condition.message}
      {condition.sinceTime && <small> {t("sinceTime", { time: moment(condition.sinceTime) })}</small>}
    </p>
  ));
}

/** A mark in a list for what has conditions; their words are its title. */
export function ConditionMark({ conditions }: { conditions: readonly Condition[] }) {
  if (conditions.length === 0) return null;
  const types = [...new Set(conditions.map(({ type }) => type))].join(", ");
  const words = conditions.map(({ type, message }) => `${type}: ${message}`).join("\n");
  return (
    <span className="condition-mark" role="img" aria-label={types} title={words}>
      ⚠
    </span>
  );
}

/** An error in the server's words: those of its fields say all of it. */
export function Trouble({ problem, retry }: { problem: Problem | undefined; retry?: () => void }) {
  if (problem === undefined) return null;
  return (
    <div role="alert" className="trouble">
      <p>
        {problem.reason && <code>{problem.reason}</code>} {problem.fields.length === 0 && problem.message}
      </p>
      {problem.fields.length > 0 && (
        <ul>
          {problem.fields.map(({ field, description }) => (
            <li key={field + description}>
              <code>{field}</code>: {description}
            </li>
          ))}
        </ul>
      )}
      {retry && (
        <button type="button" onClick={retry}>
          {t("retry")}
        </button>
      )}
    </div>
  );
}

/** A control with its label; the help is its description, and no part of its name. */
export function Labelled(props: {
  label: string;
  help?: string;
  children: ReactElement<{ id?: string; "aria-describedby"?: string }>;
}) {
  const id = useId();
  const described = props.help ? `${id}-help` : undefined;
  return (
    <div className="labelled">
      <label htmlFor={id}>{props.label}</label>
      {cloneElement(props.children, { id, "aria-describedby": described })}
      {props.help && <small id={described}>{props.help}</small>}
    </div>
  );
}

/** A modal dialog; Escape closes it, and focus returns to where it was. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-label={title}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

/** How much of something is used, in words and as a bar. */
export function Meter({ used, limit, words }: { used: number; limit: number; words: string }) {
  const share = limit > 0 ? Math.min(100, (100 * used) / limit) : 0;
  return (
    <span className="meter">
      <span className="bar" aria-hidden="true">
        <span className={share >= 100 ? "full" : ""} style={{ width: `${share}%` }} />
      </span>
      {words}
    </span>
  );
}

export function CopyButton({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  return (
    <button
      type="button"
      onClick={async () => {
        await navigator.clipboard.writeText(text);
        setCopied(true);
        setTimeout(() => setCopied(false), 2000);
      }}
    >
      {t(copied ? "copied" : "copy")}
    </button>
  );
}

export interface TabItem<T extends string> {
  id: T;
  label: string;
}

/** Tabs by the pattern of the ARIA guide: arrow keys move between them. */
export function Tabs<T extends string>(props: {
  label: string;
  items: readonly TabItem<T>[];
  selected: T;
  onSelect: (id: T) => void;
  panel: string;
}) {
  const { items, selected, onSelect } = props;
  const move = (event: React.KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    // From the one that has focus: a page may be late to show what was selected.
    const at = items.findIndex((item) => `tab-${item.id}` === (event.target as HTMLElement).id);
    const next = items[(at + step + items.length) % items.length];
    if (next === undefined) return;
    onSelect(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div role="tablist" aria-label={props.label} className="tabs" onKeyDown={move}>
      {items.map((item) => (
        <button
          key={item.id}
          id={`tab-${item.id}`}
          type="button"
          role="tab"
          aria-selected={item.id === selected}
          aria-controls={props.panel}
          tabIndex={item.id === selected ? 0 : -1}
          onClick={() => onSelect(item.id)}
        >
          {item.label}
        </button>
      ))}
    </div>
  );
}

/** A plain table of values. */
export function Table({
  head,
  rows,
  label,
}: {
  head: string[];
  rows: { key: string; cells: ReactNode[] }[];
  label: string;
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
    <section className="scroll" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((cell) => (
              <th key={cell} scope="col">
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key}>
              {row.cells.map((cell, index) => (
                <td key={head[index]}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
