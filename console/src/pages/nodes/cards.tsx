import type { ReactNode } from "react";
import { classes } from "../../design/classes";
import { type Agent, AgentState } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { t } from "../../text/administration";
import { NodeConditions, NodeMarks, SlotMeter } from "./marks";
import { slotsOf } from "./state";

/** A card for each node. */
export function NodeCards({
  agents,
  name,
  actions,
}: {
  agents: readonly Agent[];
  name: (agent: Agent) => ReactNode;
  actions: (agent: Agent) => ReactNode;
}) {
  return (
    <ul className="agents grid grid-cols-[repeat(auto-fill,minmax(min(100%,20rem),1fr))] gap-4">
      {agents.map((agent) => (
        <li
          key={agent.id}
          data-agent={agent.id}
          className={classes(
            "flex min-w-0 flex-col gap-3 rounded-lg border bg-card p-4",
            agent.state === AgentState.ALIVE ? "border-line" : "border-edge border-dashed",
          )}
        >
          <div className="flex items-start gap-2">
            <div className="flex min-w-0 grow flex-col gap-1.5">
              <h2 className="truncate text-base" title={agent.id}>
                {name(agent)}
              </h2>
              <NodeMarks agent={agent} />
            </div>
            {actions(agent)}
          </div>
          <NodeConditions agent={agent} />
          <div className="flex flex-col gap-2">
            {slotsOf([agent]).map((slot) => (
              <SlotMeter key={slot} agents={[agent]} slot={slot} />
            ))}
          </div>
          <p className="mt-auto text-sm wrap-anywhere text-quiet">
            {[
              agent.kernels === undefined ? "" : t("kernelsOf", { count: agent.kernels }),
              agent.resourceGroup,
              agent.architecture,
              agent.runtimes
                .filter((runtime) => runtime.available)
                .map((runtime) => runtime.name)
                .join(", "),
            ]
              .filter(Boolean)
              .join(" · ")}
          </p>
        </li>
      ))}
    </ul>
  );
}
