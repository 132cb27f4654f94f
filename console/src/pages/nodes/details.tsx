import { Link } from "react-router";
import { Badge } from "../../design/badge";
import { Sheet } from "../../design/dialog";
import type { Agent } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { KernelState } from "../../gen/retinue/manager/v1/session_pb";
import { shownKernel } from "../../live/state";
import { Facts } from "../../parts/facts";
import { useSessions } from "../../parts/store";
import { t } from "../../text/administration";
import { amounts, moment } from "../../text/format";
import { NodeActions } from "./actions";
import { NodeConditions, NodeMarks, SlotMeter } from "./marks";
import { sessionsOn, slotsOf } from "./state";

/** All that is known of a node, and the kernels there. */
export function NodeDetails({
  agent,
  admin,
  onClose,
  onDone,
}: {
  agent: Agent;
  admin: boolean;
  onClose: () => void;
  onDone: () => void;
}) {
  const kernels = sessionsOn(useSessions(), agent.id).flatMap((session) =>
    session.kernels
      .filter((kernel) => kernel.agent === agent.id && kernel.state !== KernelState.TERMINATED)
      .map((kernel) => ({ session, kernel })),
  );
  const others = (agent.kernels ?? kernels.length) - kernels.length;
  return (
    <Sheet title={agent.id} onClose={onClose}>
      <div className="flex flex-wrap items-center justify-between gap-2">
        <NodeMarks agent={agent} />
        {admin && <NodeActions agent={agent} onDone={onDone} />}
      </div>
      <NodeConditions agent={agent} />
      <div className="flex flex-col gap-2">
        {slotsOf([agent]).map((slot) => (
          <SlotMeter key={slot} agents={[agent]} slot={slot} />
        ))}
      </div>
      <h3 className="mt-2">{t("kernelsThere")}</h3>
      {kernels.length === 0 && others <= 0 && <p className="text-quiet">{t("nothingRunsThere")}</p>}
      <ul className="flex flex-col divide-y divide-line">
        {kernels.map(({ session, kernel }) => {
          const { icon, word } = shownKernel(kernel.state);
          return (
            <li key={kernel.id} className="flex flex-wrap items-baseline gap-x-3 py-1.5">
              <Link to={`/sessions/${session.id}`} className="font-medium text-accent">
                {session.spec?.name || session.id.slice(0, 8)}
              </Link>
              <span className="text-quiet">{kernel.hostname}</span>
              <span className="text-sm">
                <span aria-hidden="true">{icon}</span> {word}
              </span>
              <span className="ml-auto text-sm text-quiet tabular-nums">{amounts(kernel.slots)}</span>
            </li>
          );
        })}
      </ul>
      {others > 0 && <p className="text-sm text-quiet">{t("kernelsOfOthers", { count: others })}</p>}
      <h3 className="mt-2">{t("aboutNode")}</h3>
      <Facts
        facts={[
          [t("group"), agent.resourceGroup],
          [t("address"), agent.address],
          [t("architecture"), agent.architecture],
          [t("version"), agent.version],
          [t("enrolled"), moment(agent.createTime)],
          [t("lastHeardAt"), moment(agent.heartbeatTime)],
          [t("evictedAt"), moment(agent.drainDeadlineTime)],
        ]}
      />
      <h3 className="mt-2">{t("runtimes")}</h3>
      <ul className="flex flex-col gap-1.5">
        {agent.runtimes.map((runtime) => (
          <li key={runtime.name} className="flex items-baseline gap-2">
            <Badge tone={runtime.available ? "good" : "neutral"}>{runtime.name}</Badge>
            <span className="min-w-0 text-sm wrap-anywhere text-quiet">
              {runtime.message || t(runtime.available ? "available" : "notAvailable")}
            </span>
          </li>
        ))}
      </ul>
    </Sheet>
  );
}
