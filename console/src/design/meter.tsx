import { Meter as Base } from "@base-ui/react/meter";
import type { ReactNode } from "react";
import { classes } from "./classes";

/** How much of something is used, in words and as a bar. Without a limit the bar is left out. */
export function Meter({
  label,
  used,
  limit,
  words,
  calm = false,
}: {
  label?: ReactNode;
  used: number;
  limit: number;
  words: string;
  /** Whether being full is as it should be: a node that is full works. */
  calm?: boolean;
}) {
  const share = limit > 0 ? Math.min(100, (100 * used) / limit) : 0;
  return (
    <Base.Root value={share} getAriaValueText={() => words} className="flex min-w-0 flex-col gap-1">
      <span className="flex flex-wrap items-baseline justify-between gap-x-3">
        <Base.Label className={label === undefined ? "sr-only" : "text-sm font-medium"}>{label ?? words}</Base.Label>
        <span className="text-sm text-quiet tabular-nums">{words}</span>
      </span>
      {limit > 0 && (
        <Base.Track className="h-1.5 w-full overflow-hidden rounded-full bg-sunken">
          <Base.Indicator
            className={classes(
              "h-full rounded-full",
              calm || share < 85 ? "bg-accent" : share < 100 ? "bg-warn" : "bg-bad",
            )}
          />
        </Base.Track>
      )}
    </Base.Root>
  );
}
