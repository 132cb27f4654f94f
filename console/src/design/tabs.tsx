import { Tabs as Base } from "@base-ui/react/tabs";
import { type ReactNode, startTransition, useOptimistic } from "react";
import { classes } from "./classes";

export interface TabItem<T extends string> {
  id: T;
  label: ReactNode;
}

/**
 * Parts of a page of which one is shown: the children are that one. Arrow keys move between the tabs.
 *
 * A tab is selected at once, while its part may still be loaded and the last one is seen: so the last click decides, also
 * one that goes back.
 */
export function Tabs<T extends string>({
  label,
  items,
  selected,
  onSelect,
  children,
  className,
  panelClassName,
  end,
}: {
  label: string;
  items: readonly TabItem<T>[];
  selected: T;
  onSelect: (id: T) => void;
  children?: ReactNode;
  className?: string;
  panelClassName?: string;
  /** At the end of the line of tabs. */
  end?: ReactNode;
}) {
  const [chosen, choose] = useOptimistic(selected);
  const select = (id: T) =>
    startTransition(() => {
      choose(id);
      onSelect(id);
    });
  return (
    <Base.Root value={chosen} onValueChange={select} className={classes("flex min-w-0 flex-col", className)}>
      <div className="flex flex-wrap items-center gap-2 border-b border-line">
        <Base.List
          aria-label={label}
          activateOnFocus
          className="flex min-w-0 grow gap-1 overflow-x-auto overflow-y-hidden"
        >
          {items.map((item) => (
            <Base.Tab
              key={item.id}
              value={item.id}
              className={
                "inline-flex h-9 shrink-0 items-center gap-1.5 border-b-2 border-transparent px-3 text-base font-medium text-quiet " +
                "whitespace-nowrap hover:text-ink data-active:border-accent data-active:text-ink focus-visible:-outline-offset-2"
              }
            >
              {item.label}
            </Base.Tab>
          ))}
        </Base.List>
        {end}
      </div>
      <Base.Panel
        value={chosen}
        aria-busy={chosen !== selected}
        className={classes("flex min-w-0 flex-col pt-3 outline-offset-4", panelClassName)}
      >
        {children}
      </Base.Panel>
    </Base.Root>
  );
}
