import type { ReactNode } from "react";

export type Fact = readonly [string, ReactNode];

/** Names and values, one below the other; what has no value is left out. */
export function Facts({ facts }: { facts: readonly Fact[] }) {
  return (
    <dl className="grid grid-cols-[max-content_minmax(0,1fr)] gap-x-4 gap-y-1.5">
      {facts
        .filter(([, value]) => value !== undefined && value !== "")
        .map(([name, value]) => (
          <div key={name} className="contents">
            <dt className="text-sm text-quiet">{name}</dt>
            <dd className="min-w-0 wrap-anywhere tabular-nums">{value}</dd>
          </div>
        ))}
    </dl>
  );
}
