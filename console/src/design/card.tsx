import type { ReactNode } from "react";
import { classes } from "./classes";

/** A part of a page, with its title and what can be done with all of it. */
export function Card({
  title,
  actions,
  children,
  className,
  flush = false,
}: {
  title?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
  className?: string;
  /** Whether the content reaches the edge: a table does. */
  flush?: boolean;
}) {
  return (
    <section
      className={classes("min-w-0 rounded-lg border border-line bg-card", flush && "overflow-hidden", className)}
    >
      {(title !== undefined || actions !== undefined) && (
        <div className="flex flex-wrap items-center gap-2 border-b border-line px-4 py-2.5">
          {title !== undefined && <h2 className="grow text-base">{title}</h2>}
          {actions}
        </div>
      )}
      <div className={flush ? "" : "p-4"}>{children}</div>
    </section>
  );
}

/** One number that a page begins with. */
export function Figure({ label, value, note }: { label: string; value: ReactNode; note?: ReactNode }) {
  return (
    <div className="min-w-0 rounded-lg border border-line bg-card px-4 py-3">
      <div className="text-sm text-quiet">{label}</div>
      <div className="mt-0.5 text-2xl font-semibold tabular-nums">{value}</div>
      {note !== undefined && <div className="mt-0.5 text-sm text-quiet">{note}</div>}
    </div>
  );
}
