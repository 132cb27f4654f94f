import { Button as Base } from "@base-ui/react/button";
import { LoaderCircle } from "lucide-react";
import type { ComponentProps, ReactNode } from "react";
import { Link, type LinkProps } from "react-router";
import { classes } from "./classes";
import { Tooltip } from "./tooltip";

export type Look = "primary" | "plain" | "quiet" | "link" | "danger";
export type Size = "small" | "medium" | "large";

const LOOKS: Record<Look, string> = {
  primary: "bg-accent text-on-accent border-transparent hover:brightness-110 data-disabled:bg-sunken",
  plain: "bg-card text-ink border-line hover:bg-sunken data-disabled:bg-sunken",
  quiet: "bg-transparent text-ink border-transparent not-data-disabled:hover:bg-sunken data-disabled:opacity-60",
  link: "bg-transparent text-accent border-transparent not-data-disabled:hover:bg-sunken",
  danger: "bg-card text-bad border-line hover:bg-bad-soft data-disabled:bg-sunken",
};
const SIZES: Record<Size, string> = {
  small: "h-7 px-2 text-sm gap-1.5",
  medium: "h-8.5 px-3 text-base gap-2",
  large: "h-10 px-5 text-base gap-2",
};
const COMMON =
  "inline-flex shrink-0 items-center justify-center rounded-md border font-medium whitespace-nowrap no-underline select-none " +
  "data-disabled:text-quiet data-disabled:border-transparent data-disabled:hover:brightness-100";

interface Shape {
  look?: Look;
  size?: Size;
  /** Before the words. */
  icon?: ReactNode;
}

export function buttonClasses({ look = "plain", size = "medium" }: Shape): string {
  return classes(COMMON, LOOKS[look], SIZES[size]);
}

/** Does something. While it is `busy` it turns, and cannot be pressed again. */
export function Button({
  look,
  size,
  icon,
  busy = false,
  children,
  className,
  disabled,
  ...rest
}: Shape & { busy?: boolean } & Omit<ComponentProps<typeof Base>, "className"> & { className?: string }) {
  return (
    <Base className={classes(buttonClasses({ look, size }), className)} disabled={disabled || busy} {...rest}>
      {busy ? <LoaderCircle size={16} className="animate-spin" aria-hidden="true" /> : icon}
      {children}
    </Base>
  );
}

/** Goes somewhere, and looks as a button. */
export function ButtonLink({ look, size, icon, children, className, ...rest }: Shape & LinkProps) {
  return (
    <Link className={classes(buttonClasses({ look, size }), className)} {...rest}>
      {icon}
      {children}
    </Link>
  );
}

/** A button with an icon alone: its name is said when it is pointed at or focused. */
export function IconButton({
  label,
  look = "quiet",
  size = "medium",
  children,
  className,
  ...rest
}: { label: string; look?: Look; size?: Size; className?: string } & Omit<
  ComponentProps<typeof Base>,
  "className" | "aria-label"
>) {
  const square = { small: "size-7", medium: "size-8.5", large: "size-10" }[size];
  return (
    <Tooltip label={label}>
      <Base aria-label={label} className={classes(COMMON, LOOKS[look], square, className)} {...rest}>
        {children}
      </Base>
    </Tooltip>
  );
}

/** The name of what a row of a table shows, which opens it. */
export function NameButton({ children, onClick }: { children: string; onClick: () => void }) {
  return (
    <Button look="link" size="small" className="-mx-2 max-w-56" title={children} onClick={onClick}>
      <span className="truncate">{children}</span>
    </Button>
  );
}
