import type { ReactNode } from "react";
import { classes } from "./classes";
import { Empty } from "./states";

export interface Row {
  key: string;
  cells: ReactNode[];
}

const HEAD =
  "sticky top-0 border-b border-line bg-card px-4 py-2 text-left text-xs font-medium whitespace-nowrap text-quiet";

/** A table of values. Names of columns in `numeric` are set to the right. */
export function Table({
  head,
  rows,
  label,
  empty,
  numeric = [],
}: {
  head: string[];
  rows: Row[];
  label: string;
  /** What is shown when there is no row. */
  empty?: ReactNode;
  numeric?: readonly string[];
}) {
  if (rows.length === 0 && empty !== undefined) return typeof empty === "string" ? <Empty title={empty} /> : empty;
  const side = (at: number) => (numeric.includes(head[at] ?? "") ? "text-right tabular-nums" : "");
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
    <section className="relative min-w-0 overflow-auto focus-visible:-outline-offset-2" aria-label={label} tabIndex={0}>
      <table className="w-full border-collapse">
        <thead>
          <tr>
            {head.map((cell, at) => (
              <th key={cell} scope="col" className={classes(HEAD, side(at))}>
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key} className="border-b border-line last:border-0 hover:bg-sunken/60">
              {row.cells.map((cell, at) => (
                <td key={head[at]} className={classes("px-4 py-2 align-middle", side(at))}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
