import { Radio } from "@base-ui/react/radio";
import { RadioGroup } from "@base-ui/react/radio-group";
import type { ReactNode } from "react";
import { classes } from "./classes";

export interface PickItem<T extends string> {
  value: T;
  title: string;
  icon?: ReactNode;
  /** Below the title, in a line or two. */
  note?: ReactNode;
  /** At the end of the title's line. */
  beside?: ReactNode;
}

/** One of several, each a card with a few words. Arrow keys move between them. */
export function Pick<T extends string>({
  label,
  items,
  value,
  onChange,
  className = "grid-cols-2",
  tight = false,
}: {
  label: string;
  items: readonly PickItem<T>[];
  value: T | undefined;
  onChange: (value: T) => void;
  /** Columns of the grid. */
  className?: string;
  /** Whether there is a word or two on each. */
  tight?: boolean;
}) {
  return (
    <RadioGroup
      aria-label={label}
      value={value ?? ""}
      onValueChange={(chosen) => onChange(chosen as T)}
      className={classes("grid", tight ? "gap-1" : "gap-2", className)}
    >
      {items.map((item) => (
        <Radio.Root
          key={item.value}
          value={item.value}
          aria-label={item.title}
          className={classes(
            "flex min-w-0 cursor-pointer flex-col items-start gap-0.5 rounded-md border border-line bg-card py-2 text-left select-none",
            "hover:border-edge hover:bg-sunken/60 data-checked:border-accent data-checked:bg-accent-soft",
            tight ? "px-1.5" : "px-3",
          )}
        >
          <span className="flex w-full min-w-0 items-center gap-2">
            {item.icon !== undefined && <span className="shrink-0 text-accent">{item.icon}</span>}
            <span className={classes("min-w-0 grow wrap-break-word font-medium", tight && "text-sm")}>
              {item.title}
            </span>
            {item.beside}
          </span>
          {item.note !== undefined && <span className="w-full text-xs text-quiet">{item.note}</span>}
        </Radio.Root>
      ))}
    </RadioGroup>
  );
}
