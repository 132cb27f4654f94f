import { Workflow } from "lucide-react";
import { Link } from "react-router";
import { sessions } from "../../api/client";
import { Card } from "../../design/card";
import { classes } from "../../design/classes";
import { Empty, Skeleton } from "../../design/states";
import { type Session, SessionResult, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import type { SessionNode } from "../../gen/retinue/manager/v1/session_service_pb";
import { layers } from "../../live/layers";
import { reasonWords } from "../../live/reasons";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { t } from "../../text/language";

const MAX_DRAWN = 200;
const WIDTH = 190;
const HEIGHT = 44;
const GAP = 60;

/** The sessions that this one depends on, and those that depend on it, from left to right. */
export default function Graph({ session }: { session: Session }) {
  const found = useLoaded(
    `graph ${session.id} ${session.state}`,
    (signal) => sessions.getSessionGraph({ session: session.id }, { signal }),
    10,
  );
  if (found.value === undefined) {
    return found.problem ? <Trouble problem={found.problem} retry={found.reload} /> : <Skeleton lines={6} />;
  }
  if (found.value.nodes.length < 2) {
    return (
      <Empty icon={<Workflow size={32} aria-hidden="true" />} title={t("noDependencies")}>
        {t("noDependenciesHelp")}
      </Empty>
    );
  }
  const nodes = found.value.nodes.slice(0, MAX_DRAWN);
  const columns = layers(nodes.map(({ id, dependsOn }) => ({ id, after: dependsOn })));
  const places = new Map<string, { x: number; y: number }>();
  columns.forEach((column, x) => {
    column.forEach((id, y) => {
      places.set(id, { x: x * (WIDTH + GAP) + 10, y: y * (HEIGHT + 16) + 10 });
    });
  });
  const height = Math.max(...columns.map((column) => column.length), 1) * (HEIGHT + 16) + 20;
  const width = columns.length * (WIDTH + GAP) + 20;
  return (
    <Card>
      {(found.value.truncated || found.value.nodes.length > MAX_DRAWN) && (
        <p className="mb-2 text-quiet">{t("truncated")}</p>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys */}
      <section className="overflow-auto" aria-label={t("graph")} tabIndex={0}>
        {/* biome-ignore lint/a11y/useSemanticElements: there is no fieldset in SVG */}
        <svg width={width} height={height} role="group" aria-label={t("graph")}>
          {nodes.flatMap((node) =>
            node.dependsOn.map((before) => {
              const from = places.get(before);
              const to = places.get(node.id);
              if (from === undefined || to === undefined) return null;
              const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
              return (
                <path
                  key={before + node.id}
                  className="fill-none stroke-edge"
                  strokeWidth={1.5}
                  d={`M${x1},${y1} C${x1 + GAP / 2},${y1} ${x2 - GAP / 2},${y2} ${x2},${y2}`}
                />
              );
            }),
          )}
          {nodes.map((node) => {
            const place = places.get(node.id);
            return (
              place && (
                <Link
                  key={node.id}
                  to={`/sessions/${node.id}/graph`}
                  aria-current={node.id === session.id || undefined}
                >
                  <g transform={`translate(${place.x},${place.y})`}>
                    <title>{`${node.name} ${node.reason && reasonWords(node.reason)}`}</title>
                    <rect
                      width={WIDTH}
                      height={HEIGHT}
                      rx={6}
                      strokeWidth={node.id === session.id ? 2.5 : 1.25}
                      className={classes("fill-card", LINES[look(node)])}
                    />
                    <text x={10} y={18} className="fill-ink text-sm font-medium">
                      {node.name.slice(0, 22)}
                    </text>
                    <text x={10} y={35} className={classes("text-xs", WORDS[look(node)])}>
                      {word(node)}
                    </text>
                  </g>
                </Link>
              )
            );
          })}
        </svg>
      </section>
    </Card>
  );
}

type Look = "good" | "bad" | "waiting" | "ended";
const LINES: Record<Look, string> = {
  good: "stroke-good",
  bad: "stroke-bad",
  waiting: "stroke-warn",
  ended: "stroke-edge",
};
const WORDS: Record<Look, string> = { good: "fill-good", bad: "fill-bad", waiting: "fill-warn", ended: "fill-quiet" };

function word(node: SessionNode): string {
  if (node.result === SessionResult.SUCCESS) return `✓ ${t("nodeSuccess")}`;
  if (node.result === SessionResult.FAILED) return `✕ ${t("failed")}`;
  if (node.state === SessionState.RUNNING) return `● ${t("running")}`;
  if (node.state === SessionState.PENDING) return `◌ ${t("waiting")}`;
  return node.state === SessionState.TERMINATED || node.state === SessionState.CANCELLED
    ? `○ ${t("ended")}`
    : `◐ ${t("phasePreparing")}`;
}

function look(node: SessionNode): Look {
  if (node.result === SessionResult.SUCCESS || node.state === SessionState.RUNNING) return "good";
  if (node.result === SessionResult.FAILED) return "bad";
  return node.state === SessionState.PENDING ? "waiting" : "ended";
}
