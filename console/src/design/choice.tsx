import { Toggle } from "@base-ui/react/toggle";
import { ToggleGroup } from "@base-ui/react/toggle-group";
import type { ReactNode } from "react";

/** One of a few: a filter, a kind, a range of time. All are seen at once. */
export function Choice<T extends string>({
  label,
  options,
  value,
  onChange,
}: {
  label: string;
  options: readonly { value: T; label: ReactNode }[];
  value: T;
  onChange: (value: T) => void;
}) {
  return (
    <ToggleGroup
      aria-label={label}
      value={[value]}
      onValueChange={([chosen]) => chosen !== undefined && onChange(chosen as T)}
      className="inline-flex max-w-full shrink-0 gap-0.5 overflow-x-auto rounded-md border border-line bg-sunken p-0.5"
    >
      {options.map((option) => (
        <Toggle
          key={option.value}
          value={option.value}
          className={
            "inline-flex h-7 shrink-0 items-center gap-1.5 rounded-sm px-2.5 text-sm font-medium whitespace-nowrap text-quiet " +
            "hover:text-ink data-pressed:bg-card data-pressed:text-ink data-pressed:shadow-sm"
          }
        >
          {option.label}
        </Toggle>
      ))}
    </ToggleGroup>
  );
}
