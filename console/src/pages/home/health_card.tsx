import { CircleAlert, CircleCheck, type LucideIcon, TriangleAlert } from "lucide-react";
import { Link } from "react-router";
import { fleet } from "../../api/fleet";
import { Card } from "../../design/card";
import { Skeleton } from "../../design/states";
import { type Agent, AgentState, RouterState } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { firstLine, reasonWords } from "../../live/reasons";
import { Trouble } from "../../parts/basics";
import { type Loaded, useLoaded, useStatus } from "../../parts/store";
import { clock } from "../../text/format";
import { t } from "../../text/language";

const PERIOD = 10;
const SHOWN = 6;

type Health = "good" | "warn" | "bad";
const ICONS: Record<Health, LucideIcon> = { good: CircleCheck, warn: TriangleAlert, bad: CircleAlert };
const COLOURS: Record<Health, string> = { good: "text-good", warn: "text-warn", bad: "text-bad" };

interface Line {
  health: Health;
  text: string;
  title?: string;
  to?: string;
}

/** How the manager, the nodes and the routers are: a line each, and one for each thing that is the matter. */
export function HealthCard({ nodes }: { nodes: Loaded<readonly Agent[]> }) {
  const status = useStatus();
  const routers = useLoaded(
    "routers",
    async (signal) => (await fleet.listRouters({ pageSize: 500 }, { signal })).routers,
    PERIOD,
  );
  const lines: Line[] = [
    status.state === "live"
      ? { health: "good", text: t("managerLive") }
      : { health: "bad", text: t("managerSince", { time: clock(status.since) }) },
  ];
  if (nodes.value !== undefined && nodes.value.length > 0) {
    const alive = nodes.value.filter(({ state }) => state === AgentState.ALIVE).length;
    const all = nodes.value.length;
    lines.push({ health: alive === all ? "good" : "bad", text: t("nodesAlive", { alive, all }), to: "/cluster" });
  }
  const known = routers.value?.filter(({ state }) => state !== RouterState.REVOKED) ?? [];
  if (known.length > 0) {
    const live = known.filter(({ state }) => state === RouterState.ALIVE).length;
    lines.push({
      health: live === known.length ? "good" : "bad",
      text: t("routersLive", { live, all: known.length }),
    });
  }
  const matters = (nodes.value ?? []).flatMap(mattersOf);
  return (
    <Card title={t("health")}>
      <Trouble problem={nodes.problem ?? routers.problem} retry={nodes.reload} />
      {nodes.value === undefined && !nodes.problem ? (
        <Skeleton />
      ) : (
        <ul className="flex flex-col gap-2">
          {[...lines, ...matters.slice(0, SHOWN)].map((line) => (
            <HealthLine key={line.text} line={line} />
          ))}
        </ul>
      )}
    </Card>
  );
}

function mattersOf(node: Agent): Line[] {
  const to = `/cluster?q=${encodeURIComponent(node.id)}`;
  const lines: Line[] = node.conditions.map(({ reason, message }) => ({
    health: "warn",
    text: `${node.id}: ${message === "" ? reasonWords(reason) : firstLine(message)}`,
    title: `${reason}: ${message}`,
    to,
  }));
  if (node.state !== AgentState.ALIVE) lines.push({ health: "bad", text: t("nodeNotUp", { name: node.id }), to });
  else if (node.drained) lines.push({ health: "warn", text: t("nodeIsDrained", { name: node.id }), to });
  return lines;
}

function HealthLine({ line }: { line: Line }) {
  const Icon = ICONS[line.health];
  return (
    <li className="flex items-start gap-2" title={line.title}>
      <Icon size={16} className={`mt-0.5 shrink-0 ${COLOURS[line.health]}`} aria-hidden="true" />
      {line.to === undefined ? (
        <span className="min-w-0 wrap-anywhere">{line.text}</span>
      ) : (
        <Link to={line.to} className="min-w-0 wrap-anywhere text-ink no-underline hover:text-accent hover:underline">
          {line.text}
        </Link>
      )}
    </li>
  );
}
