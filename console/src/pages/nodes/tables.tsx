import type { ReactNode } from "react";
import { Badge } from "../../design/badge";
import { Card } from "../../design/card";
import { classes } from "../../design/classes";
import { Table } from "../../design/table";
import type { Agent } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { t } from "../../text/administration";
import { amountText } from "../../text/format";
import { NodeMarks } from "./marks";
import { slotsOf, step, usageOf } from "./state";

interface Shown {
  agents: readonly Agent[];
  name: (agent: Agent) => ReactNode;
}

/** A line for each node. */
export function NodeTable({ agents, name, actions }: Shown & { actions: (agent: Agent) => ReactNode }) {
  const slots = slotsOf(agents);
  const numeric = [t("kernels"), ...slots];
  return (
    <Card flush>
      <Table
        label={t("nodes")}
        head={[t("name"), t("state"), t("group"), ...numeric, t("version"), t("actions")]}
        numeric={numeric}
        rows={agents.map((agent) => ({
          key: agent.id,
          cells: [
            name(agent),
            <span key="state" className="flex flex-col gap-0.5">
              <NodeMarks agent={agent} />
              {agent.conditions.map((condition) => (
                <span key={condition.type + condition.reason} className="text-xs text-warn">
                  {condition.message}
                </span>
              ))}
            </span>,
            agent.resourceGroup,
            agent.kernels ?? "",
            ...slots.map((slot) => {
              const { used, all } = usageOf([agent], slot);
              return all > 0 ? `${amountText(slot, used)} / ${amountText(slot, all)}` : "–";
            }),
            <span key="version" className="block max-w-40 truncate text-quiet" title={agent.version}>
              {agent.version}
            </span>,
            actions(agent),
          ],
        }))}
      />
    </Card>
  );
}

/** By how full: from nothing to all. Text stays readable on each. */
const HEAT = [
  "bg-sunken text-quiet",
  "bg-accent/10 text-ink",
  "bg-accent/20 text-ink",
  "bg-accent/30 text-ink",
  "bg-accent/45 text-ink",
  "bg-accent text-on-accent",
];

/** Nodes by slots, the darker the fuller, with the share in words. */
export function HeatMap({ agents, name }: Shown) {
  const slots = slotsOf(agents);
  return (
    <Card
      title={t("heatMap")}
      actions={
        <span className="inline-flex items-center gap-1 text-xs text-quiet">
          {t("free")}
          {HEAT.map((colour) => (
            <span key={colour} className={classes("size-3.5 rounded-sm", colour)} />
          ))}
          {t("full")}
        </span>
      }
      flush
    >
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys */}
      <section className="overflow-auto p-4" aria-label={t("heatMap")} tabIndex={0}>
        <table className="heat w-full border-separate border-spacing-1">
          <thead>
            <tr>
              <th scope="col" className="px-2 text-left text-xs font-medium text-quiet">
                {t("nodes")}
              </th>
              {slots.map((slot) => (
                <th key={slot} scope="col" className="px-2 text-xs font-medium text-quiet">
                  {slot}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {agents.map((agent) => (
              <tr key={agent.id}>
                <th scope="row" className="max-w-48 truncate px-2 text-left font-medium" title={agent.id}>
                  {name(agent)} {agent.drained && <Badge tone="warn">{t("drained")}</Badge>}
                </th>
                {slots.map((slot) => {
                  const use = usageOf([agent], slot);
                  const at = step(use);
                  if (at < 0) {
                    return (
                      <td key={slot} className="h-11 rounded-sm text-center text-quiet">
                        –
                      </td>
                    );
                  }
                  return (
                    <td
                      key={slot}
                      className={classes("h-11 min-w-24 rounded-sm px-2 text-center tabular-nums", HEAT[at])}
                    >
                      <span className="block font-medium">{Math.round((100 * use.used) / use.all)} %</span>
                      <span className="block text-xs">
                        {t("usedOf", { used: amountText(slot, use.used), all: amountText(slot, use.all) })}
                      </span>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </Card>
  );
}
