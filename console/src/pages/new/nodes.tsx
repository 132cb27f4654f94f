import { Badge } from "../../design/badge";
import { classes } from "../../design/classes";
import type { Agent } from "../../gen/retinue/manager/v1/fleet_service_pb";
import type { KernelPlacement } from "../../gen/retinue/manager/v1/session_service_pb";
import { nodeBoxes } from "../../spec/picture";
import { amountText } from "../../text/format";
import { t } from "../../text/language";

const MOST = 8;

/** The nodes of the group: what is used, what the request would take, and which kernels would be where. */
export function Nodes({
  agents,
  placements,
  slots,
}: {
  agents: readonly Agent[];
  placements: readonly KernelPlacement[];
  slots: Readonly<Record<string, string>>;
}) {
  const boxes = nodeBoxes(agents, placements, slots);
  if (boxes.length === 0) return null;
  return (
    <div className="flex flex-col gap-2">
      <p aria-hidden="true" className="flex flex-wrap gap-x-3 text-xs text-quiet">
        <Mark className="bg-edge">{t("used")}</Mark>
        <Mark className="bg-accent">{t("thisSession")}</Mark>
        <Mark className="border border-line bg-sunken">{t("freeAmount")}</Mark>
      </p>
      <ul className="nodes grid grid-cols-[repeat(auto-fill,minmax(9.5rem,1fr))] gap-2" aria-label={t("nodes")}>
        {boxes.slice(0, MOST).map((box) => (
          <li
            key={box.agent}
            data-agent={box.agent}
            className={classes(
              "flex min-w-0 flex-col gap-1.5 rounded-md border p-2.5",
              box.kernels.length > 0 ? "border-accent bg-accent-soft" : "border-line",
              !box.takesKernels && "border-dashed",
            )}
          >
            <span className="flex min-w-0 items-center gap-1.5">
              <span className="truncate text-sm font-medium" title={box.agent}>
                {box.agent}
              </span>
              {!box.takesKernels && <Badge className="ml-auto">{t("takesNone")}</Badge>}
            </span>
            {box.bars.map((bar) => (
              <span
                key={bar.slot}
                className="grid grid-cols-[2rem_1fr_3.75rem] items-center gap-1.5 text-2xs text-quiet"
              >
                <span className="truncate" title={bar.slot}>
                  {bar.slot}
                </span>
                <span aria-hidden="true" className="flex h-2 overflow-hidden rounded-full bg-sunken">
                  <span className="bg-edge" style={{ width: `${100 * bar.used}%` }} />
                  <span className="bg-accent" style={{ width: `${100 * bar.planned}%` }} />
                </span>
                <span className="text-right tabular-nums">
                  {t("amountFree", { free: amountText(bar.slot, bar.free) })}
                </span>
              </span>
            ))}
            {box.kernels.length > 0 && (
              <span className="flex flex-wrap gap-1">
                {box.kernels.slice(0, MOST).map((hostname) => (
                  <span key={hostname} className="rounded-sm bg-accent px-1.5 text-2xs font-medium text-on-accent">
                    {hostname}
                  </span>
                ))}
                {box.kernels.length > MOST && (
                  <span className="text-2xs text-quiet">{t("kernelsMore", { count: box.kernels.length - MOST })}</span>
                )}
              </span>
            )}
          </li>
        ))}
      </ul>
      {boxes.length > MOST && <p className="text-xs text-quiet">{t("moreNodes", { count: boxes.length - MOST })}</p>}
    </div>
  );
}

function Mark({ className, children }: { className: string; children: string }) {
  return (
    <span className="inline-flex items-center gap-1">
      <span className={classes("size-2.5 rounded-sm", className)} />
      {children}
    </span>
  );
}
