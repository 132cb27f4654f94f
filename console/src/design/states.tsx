import type { ReactNode } from "react";
import { t } from "../text/language";
import { classes } from "./classes";

/** The shape of what is being loaded. */
export function Skeleton({ lines = 3, className }: { lines?: number; className?: string }) {
  return (
    <div role="status" className={classes("flex flex-col gap-2", className)}>
      <span className="sr-only">{t("loading")}</span>
      {Array.from({ length: lines }, (_, line) => (
        <span
          // biome-ignore lint/suspicious/noArrayIndexKey: lines have no other name
          key={line}
          aria-hidden="true"
          className={classes("h-4 animate-pulse rounded-sm bg-sunken", ["w-full", "w-4/5", "w-3/5"][line % 3])}
        />
      ))}
    </div>
  );
}

/** A place with nothing in it yet: what would be here, and what to do for it. */
export function Empty({
  icon,
  title,
  children,
  action,
}: {
  icon?: ReactNode;
  title: string;
  children?: ReactNode;
  action?: ReactNode;
}) {
  return (
    <div className="flex flex-col items-center gap-2 px-6 py-10 text-center">
      {icon !== undefined && <span className="text-edge">{icon}</span>}
      <p className="font-semibold">{title}</p>
      {children !== undefined && <div className="max-w-md text-quiet">{children}</div>}
      {action}
    </div>
  );
}
