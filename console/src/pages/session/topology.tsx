import { Card } from "../../design/card";
import { classes } from "../../design/classes";
import { type Kernel, KernelState, NetworkKind, type Session } from "../../gen/retinue/manager/v1/session_pb";
import { shownKernel } from "../../live/state";
import { t } from "../../text/language";

const MAX_DRAWN = 32;
const WIDTH = 212;
const GAP = 20;
const HEAD = 34;
const ROW = 30;
const BRIDGE = 30;
const DROP = 26;

/** Who reaches whom: kernels in their nodes, the bridge of each node, and the tunnel between the nodes. */
export function Topology({ session }: { session: Session }) {
  const placed = session.kernels.filter((kernel) => kernel.agent !== "");
  if (placed.length === 0) return null;
  const nodes = [...Map.groupBy(placed.slice(0, MAX_DRAWN), (kernel) => kernel.agent)];
  const bridged = session.network !== NetworkKind.UNSPECIFIED;
  const tunnel = session.network === NetworkKind.VXLAN;
  const most = Math.max(...nodes.map(([, kernels]) => kernels.length));
  const box = HEAD + most * ROW + (bridged ? BRIDGE + 8 : 6);
  const width = nodes.length * (WIDTH + GAP) - GAP + 2;
  const height = box + (tunnel ? DROP + 26 : 0) + 2;
  const middle = (at: number) => at * (WIDTH + GAP) + WIDTH / 2;
  return (
    <Card title={t("topology")} className="topology">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys */}
      <section className="overflow-x-auto" aria-label={t("topology")} tabIndex={0}>
        <svg
          width={width}
          height={height}
          viewBox={`-1 -1 ${width} ${height}`}
          role="img"
          aria-label={words(session, nodes)}
        >
          {tunnel && (
            <g>
              {nodes.map(([agent], at) => (
                <line
                  key={agent}
                  x1={middle(at)}
                  x2={middle(at)}
                  y1={box}
                  y2={box + DROP}
                  className="stroke-edge"
                  strokeWidth={1.5}
                />
              ))}
              <rect
                x={0}
                y={box + DROP}
                width={width - 2}
                height={24}
                rx={12}
                className="fill-accent-soft stroke-accent"
              />
              <text
                x={(width - 2) / 2}
                y={box + DROP + 16}
                textAnchor="middle"
                className="fill-accent text-xs font-medium"
              >
                VXLAN
              </text>
            </g>
          )}
          {nodes.map(([agent, kernels], at) => (
            <g key={agent} transform={`translate(${at * (WIDTH + GAP)} 0)`}>
              <rect width={WIDTH} height={box} rx={8} className="fill-page stroke-line" />
              <text x={12} y={22} className="fill-ink text-sm font-semibold">
                {cut(agent, 26)}
                <title>{agent}</title>
              </text>
              {kernels.map((kernel, row) => (
                <Kernels key={kernel.id} kernel={kernel} y={HEAD + row * ROW} />
              ))}
              {bridged && (
                <g transform={`translate(8 ${box - BRIDGE - 2})`}>
                  {tunnel && (
                    <line
                      x1={WIDTH / 2 - 8}
                      x2={WIDTH / 2 - 8}
                      y1={22}
                      y2={BRIDGE + 2}
                      className="stroke-edge"
                      strokeWidth={1.5}
                    />
                  )}
                  <rect width={WIDTH - 16} height={22} rx={11} className="fill-sunken stroke-edge" />
                  <text x={(WIDTH - 16) / 2} y={15} textAnchor="middle" className="fill-quiet text-xs">
                    {t("bridge")}
                  </text>
                </g>
              )}
            </g>
          ))}
        </svg>
      </section>
      <p className="mt-2 text-sm text-quiet">
        {placed.length > MAX_DRAWN && `${t("moreKernels", { count: placed.length - MAX_DRAWN })} `}
        {t(tunnel ? "networkVxlan" : bridged ? "networkBridge" : "networkNone")}
      </p>
    </Card>
  );
}

function Kernels({ kernel, y }: { kernel: Kernel; y: number }) {
  return (
    <g transform={`translate(8 ${y})`}>
      <rect width={WIDTH - 16} height={ROW - 5} rx={5} className="fill-card stroke-line" />
      <circle
        cx={13}
        cy={12.5}
        r={4}
        className={classes(
          kernel.state === KernelState.RUNNING
            ? "fill-good"
            : kernel.state >= KernelState.TERMINATING
              ? "fill-edge"
              : "fill-busy",
        )}
      />
      <text x={24} y={17} className="fill-ink text-xs font-medium">
        {cut(kernel.hostname, 12)}
        <title>{`${kernel.hostname}: ${shownKernel(kernel.state).word}`}</title>
      </text>
      <text x={WIDTH - 26} y={17} textAnchor="end" className="fill-quiet text-xs tabular-nums">
        {kernel.address}
      </text>
    </g>
  );
}

function cut(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function words(session: Session, nodes: [string, Kernel[]][]): string {
  const places = nodes.map(
    ([agent, kernels]) => `${agent}: ${kernels.map((each) => `${each.hostname} ${each.address}`.trim()).join(", ")}`,
  );
  return [...places, NetworkKind[session.network] ?? ""].join("; ");
}
