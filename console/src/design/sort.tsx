import { ArrowDown, ArrowUp } from "lucide-react";
import { Button } from "./button";
import { classes } from "./classes";

/** The head of a column that rows can be ordered by. */
export function SortButton({
  label,
  direction,
  onClick,
  className,
}: {
  label: string;
  /** Undefined while rows are ordered by another column. */
  direction: "asc" | "desc" | undefined;
  onClick: () => void;
  className?: string;
}) {
  const Arrow = direction === "desc" ? ArrowDown : ArrowUp;
  return (
    <Button
      look="quiet"
      size="small"
      onClick={onClick}
      className={classes("-mx-2 max-w-full text-xs", direction === undefined ? "text-quiet" : "text-ink", className)}
    >
      <span className="truncate" title={label}>
        {label}
      </span>
      {direction !== undefined && <Arrow size={13} aria-hidden="true" />}
    </Button>
  );
}
