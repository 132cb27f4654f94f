import type { ReactNode } from "react";
import { classes } from "./classes";

export type Tone = "neutral" | "good" | "warn" | "bad" | "busy" | "accent";

const TONES: Record<Tone, string> = {
  neutral: "bg-sunken text-quiet",
  good: "bg-good-soft text-good",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  busy: "bg-busy-soft text-busy",
  accent: "bg-accent-soft text-accent",
};

/** A short word beside a thing. Its tone never says what the word does not. */
export function Badge({
  tone = "neutral",
  children,
  className,
  title,
}: {
  tone?: Tone;
  children: ReactNode;
  className?: string;
  title?: string;
}) {
  return (
    <span
      title={title}
      className={classes(
        "inline-flex h-5.5 items-center gap-1 rounded-full px-2 text-xs font-medium whitespace-nowrap",
        TONES[tone],
        className,
      )}
    >
      {children}
    </span>
  );
}
