import { Menu as Base } from "@base-ui/react/menu";
import { Check } from "lucide-react";
import type { ReactElement, ReactNode } from "react";
import { Link } from "react-router";
import { classes } from "./classes";

export const POPUP = "min-w-44 rounded-md border border-line bg-card p-1 text-ink shadow-pop outline-none";
export const OPTION =
  "flex cursor-default items-center gap-2 rounded-sm px-2.5 py-1.5 text-base no-underline outline-none select-none " +
  "data-highlighted:bg-accent-soft data-highlighted:text-accent data-disabled:text-quiet";

/** Actions behind one button. `trigger` is the button. */
export function Menu({
  trigger,
  children,
  align = "end",
  defaultOpen = false,
}: {
  trigger: ReactElement<Record<string, unknown>>;
  children: ReactNode;
  align?: "start" | "center" | "end";
  defaultOpen?: boolean;
}) {
  return (
    <Base.Root defaultOpen={defaultOpen}>
      <Base.Trigger render={trigger} />
      <Base.Portal>
        <Base.Positioner sideOffset={4} align={align} className="z-50">
          <Base.Popup className={POPUP}>{children}</Base.Popup>
        </Base.Positioner>
      </Base.Portal>
    </Base.Root>
  );
}

/** Actions beside an element that has no menu of its own, as one row of many. It is open as long as it is drawn. */
export function MenuAt({
  anchor,
  label,
  children,
  onClose,
}: {
  anchor: Element;
  label: string;
  children: ReactNode;
  onClose: () => void;
}) {
  return (
    <Base.Root open onOpenChange={(open) => !open && onClose()}>
      <Base.Portal>
        <Base.Positioner anchor={anchor} sideOffset={4} align="end" className="z-50">
          <Base.Popup className={POPUP} aria-label={label} finalFocus={() => anchor as HTMLElement}>
            {children}
          </Base.Popup>
        </Base.Positioner>
      </Base.Portal>
    </Base.Root>
  );
}

export function MenuItem({
  icon,
  children,
  onSelect,
  disabled = false,
  danger = false,
}: {
  icon?: ReactNode;
  children: ReactNode;
  onSelect: () => void;
  disabled?: boolean;
  danger?: boolean;
}) {
  return (
    <Base.Item className={classes(OPTION, danger && "text-bad")} disabled={disabled} onClick={onSelect}>
      {icon}
      {children}
    </Base.Item>
  );
}

export function MenuLink({ icon, children, to }: { icon?: ReactNode; children: ReactNode; to: string }) {
  return (
    <Base.Item className={OPTION} render={<Link to={to} />}>
      {icon}
      {children}
    </Base.Item>
  );
}

export function MenuSeparator() {
  return <Base.Separator className="mx-1 my-1 h-px bg-line" />;
}

/** One of a few settings. */
export function MenuChoice<T extends string>({
  label,
  value,
  options,
  onChange,
}: {
  label: string;
  value: T;
  options: readonly { value: T; label: string }[];
  onChange: (value: T) => void;
}) {
  return (
    <Base.Group>
      <Base.GroupLabel className="px-2.5 pt-1.5 pb-1 text-xs font-medium text-quiet">{label}</Base.GroupLabel>
      <Base.RadioGroup value={value} onValueChange={onChange}>
        {options.map((option) => (
          <Base.RadioItem key={option.value} value={option.value} className={OPTION}>
            <span className="inline-flex w-4">
              <Base.RadioItemIndicator>
                <Check size={14} aria-hidden="true" />
              </Base.RadioItemIndicator>
            </span>
            {option.label}
          </Base.RadioItem>
        ))}
      </Base.RadioGroup>
    </Base.Group>
  );
}

/** Any number of things that are shown or not. */
export function MenuCheck({
  checked,
  onChange,
  children,
}: {
  checked: boolean;
  onChange: (checked: boolean) => void;
  children: ReactNode;
}) {
  return (
    <Base.CheckboxItem className={OPTION} checked={checked} onCheckedChange={onChange} closeOnClick={false}>
      <span className="inline-flex w-4">
        <Base.CheckboxItemIndicator>
          <Check size={14} aria-hidden="true" />
        </Base.CheckboxItemIndicator>
      </span>
      {children}
    </Base.CheckboxItem>
  );
}
