import { ChevronRight } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { classes } from "./classes";

export interface Crumb {
  label: string;
  to: string;
}

/** What every page begins with: where it is, its title, and what can be done with all of it. */
export function Page({
  title,
  crumbs = [],
  beside,
  actions,
  lead,
  children,
  fill = false,
  wide = false,
}: {
  title: ReactNode;
  crumbs?: readonly Crumb[];
  /** Marks beside the title. */
  beside?: ReactNode;
  actions?: ReactNode;
  /** One sentence below the title. */
  lead?: ReactNode;
  children: ReactNode;
  /** Whether the page has the height of the window, and scrolls within. */
  fill?: boolean;
  /** Whether it takes all of a wide window: a table with many columns does. */
  wide?: boolean;
}) {
  return (
    <div
      className={classes(
        "mx-auto flex w-full flex-col gap-4 p-4 sm:p-6",
        !wide && "max-w-400",
        fill && "h-full min-h-0",
      )}
    >
      <div className="flex flex-col gap-1">
        {crumbs.length > 0 && (
          <nav aria-label="Breadcrumb">
            <ol className="flex flex-wrap items-center gap-1 text-sm text-quiet">
              {crumbs.map((crumb) => (
                <li key={crumb.to} className="inline-flex items-center gap-1">
                  <Link to={crumb.to} className="text-quiet no-underline hover:text-ink hover:underline">
                    {crumb.label}
                  </Link>
                  <ChevronRight size={13} aria-hidden="true" />
                </li>
              ))}
            </ol>
          </nav>
        )}
        <div className="bar-top flex flex-wrap items-center gap-x-3 gap-y-2">
          <h1 className="min-w-0 wrap-anywhere">{title}</h1>
          {beside}
          {actions !== undefined && <div className="ml-auto flex flex-wrap items-center gap-2">{actions}</div>}
        </div>
        {lead !== undefined && <p className="max-w-3xl text-quiet">{lead}</p>}
      </div>
      {children}
    </div>
  );
}
