import { Link } from "react-router";
import { sessions } from "../../api/client";
import { type Session, SessionResult, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import type { SessionNode } from "../../gen/retinue/manager/v1/session_service_pb";
import { layers } from "../../live/layers";
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
  if (found.value === undefined) return <Trouble problem={found.problem} retry={found.reload} />;
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
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
    <section className="scroll" aria-label={t("graph")} tabIndex={0}>
      {(found.value.truncated || found.value.nodes.length > MAX_DRAWN) && <p className="note">{t("truncated")}</p>}
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
                className="edge"
                d={`M${x1},${y1} C${x1 + GAP / 2},${y1} ${x2 - GAP / 2},${y2} ${x2},${y2}`}
              />
            );
          }),
        )}
        {nodes.map((node) => {
          const place = places.get(node.id);
          return (
            place && (
              <Link key={node.id} to={`/sessions/${node.id}/graph`} aria-current={node.id === session.id || undefined}>
                <g transform={`translate(${place.x},${place.y})`} className={`graph-node ${look(node)}`}>
                  <rect width={WIDTH} height={HEIGHT} rx={6} />
                  <text x={10} y={18}>
                    {node.name.slice(0, 22)}
                  </text>
                  <text x={10} y={35} className="small">
                    {word(node)}
                  </text>
                </g>
              </Link>
            )
          );
        })}
      </svg>
    </section>
  );
}

function word(node: SessionNode): string {
  if (node.result === SessionResult.SUCCESS) return "✓ Success";
  if (node.result === SessionResult.FAILED) return `✕ Failed ${node.reason}`;
  return `${SessionState[node.state] ?? node.state} ${node.reason}`;
}

function look(node: SessionNode): string {
  if (node.result === SessionResult.SUCCESS) return "success";
  if (node.result === SessionResult.FAILED) return "failure";
  return node.state === SessionState.RUNNING ? "running" : node.state === SessionState.PENDING ? "waiting" : "ended";
}
