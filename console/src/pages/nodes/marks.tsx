import { timestampDate } from "@bufbuild/protobuf/wkt";
import { TriangleAlert } from "lucide-react";
import { Badge } from "../../design/badge";
import { Meter } from "../../design/meter";
import { type Agent, AgentConditionType } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { useNow } from "../../parts/store";
import { t } from "../../text/administration";
import { amountText, span } from "../../text/format";
import { agentMark, usageOf } from "./state";

const LATE_SECONDS = 30;

/** The state of a node in words: whether it is heard, and whether it takes sessions. */
export function NodeMarks({ agent }: { agent: Agent }) {
  const { key, tone } = agentMark(agent.state);
  return (
    <span className="inline-flex flex-wrap items-center gap-1.5">
      <Badge tone={tone} className="state">
        {t(key)}
      </Badge>
      {agent.drained && <Badge tone="warn">{t("drained")}</Badge>}
      <LastHeard agent={agent} />
    </span>
  );
}

function LastHeard({ agent }: { agent: Agent }) {
  const now = useNow();
  if (agent.heartbeatTime === undefined) return null;
  const seconds = (now - timestampDate(agent.heartbeatTime).getTime()) / 1000;
  if (seconds <= LATE_SECONDS) return null;
  return <span className="text-sm text-quiet">{t("lastHeard", { time: span(seconds) })}</span>;
}

/** What is wrong with a node, in its own words. */
export function NodeConditions({ agent }: { agent: Agent }) {
  return agent.conditions.map((condition) => (
    <p
      key={`${condition.type} ${condition.reason}`}
      title={`${AgentConditionType[condition.type] ?? condition.type} ${condition.reason}`.trim()}
      className="condition flex items-start gap-2 rounded-md bg-warn-soft px-3 py-2 text-sm wrap-anywhere text-warn"
    >
      <TriangleAlert size={15} className="mt-0.5 shrink-0" aria-hidden="true" />
      <span>
        {condition.message} {condition.blocksPlacement && t("nothingPlacedMeanwhile")}
      </span>
    </p>
  ));
}

/** What is used of a slot, as a bar. */
export function SlotMeter({ agents, slot }: { agents: readonly Agent[]; slot: string }) {
  const { used, all } = usageOf(agents, slot);
  const words = t("usedOf", { used: amountText(slot, used), all: amountText(slot, all) });
  return <Meter label={slot} used={used} limit={all} words={words} calm />;
}
