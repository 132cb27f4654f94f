import { around, compared } from "../spec/lines";
import { classes } from "./classes";

const LOOK = { same: "text-quiet", added: "bg-good-soft text-good", removed: "bg-bad-soft text-bad" } as const;
const MARK = { same: " ", added: "+", removed: "−" } as const;

/** What changes from one text to another, line by line; with `near`, and so many lines around what changes. */
export function Diff({
  label,
  before,
  after,
  near = Number.POSITIVE_INFINITY,
}: {
  label: string;
  before: string;
  after: string;
  near?: number;
}) {
  const lines = compared(before, after);
  return (
    <section
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
      tabIndex={0}
      aria-label={label}
      className="diff max-h-[60vh] overflow-auto rounded-md bg-sunken"
    >
      <pre className="min-w-max py-2">
        {(Number.isFinite(near) ? around(lines, near) : lines).map(({ kind, text }, at) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: lines have no other name
          <span key={at} className={classes("block px-3", LOOK[kind])}>
            {MARK[kind]} {text}
          </span>
        ))}
      </pre>
    </section>
  );
}
