import { SquareTerminal } from "lucide-react";
import { useMemo, useState } from "react";
import { Link } from "react-router";
import { sessions } from "../../api/client";
import { Badge } from "../../design/badge";
import { Card } from "../../design/card";
import { Chart, type Series } from "../../design/chart";
import { Choice } from "../../design/choice";
import { Code } from "../../design/code";
import { CopyButton } from "../../design/copy";
import { Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import { type Kernel, type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { firstLine, reasonWords } from "../../live/reasons";
import { shownKernel, typeWord } from "../../live/state";
import { levels, type Points, rates, type Sample } from "../../live/usage";
import { StateMark, Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { quoted } from "../../spec/words";
import { amounts, bytes, moment, secondsOf, span } from "../../text/format";
import { type Key, t } from "../../text/language";
import { useJournal } from "./journal";
import { Timeline } from "./timeline";
import { Topology } from "./topology";
import { useUsage } from "./usage";

const MAX_LINES = 8;
const perSecond = (value: number) => `${bytes(value)}/s`;
const percent = (value: number) => `${Math.round(value)} %`;
const processors = (value: number) => value.toFixed(value > 0 && value < 0.1 ? 3 : value < 10 ? 2 : 1);

export default function Overview({ session }: { session: Session }) {
  const usage = useUsage(session);
  const journal = useJournal(session);
  return (
    <div className="overview flex flex-col gap-4">
      <Timeline session={session} events={journal.events} />
      {session.state === SessionState.PENDING && <Why session={session} />}
      <KernelTable session={session} usage={usage.kernels} />
      <Trouble problem={usage.problem} />
      {(session.startTime !== undefined || usage.kernels.size > 0) && (
        <Charts usage={usage.kernels} turn={usage.turn} slots={session.kernels[0]?.slots ?? {}} />
      )}
      <div className="grid gap-4 xl:grid-cols-2">
        <Topology session={session} />
        <Facts session={session} />
      </div>
    </div>
  );
}

function KernelTable({ session, usage }: { session: Session; usage: ReadonlyMap<string, Sample[]> }) {
  const running = session.state === SessionState.RUNNING;
  const several = session.kernels.length > 1;
  // What all kernels have alike stands below, in the details.
  const differ = new Set(session.kernels.map((kernel) => amounts(kernel.slots))).size > 1;
  const gpu = [...usage.values()].some((samples) => samples.at(-1)?.gpu !== undefined);
  const ended = session.kernels.some((kernel) => kernel.exitCode !== undefined || kernel.reason !== "");
  const columns: (readonly [Key, (kernel: Kernel, samples: Sample[]) => React.ReactNode] | false)[] = [
    ["kernel", (kernel) => <strong className="font-medium">{kernel.hostname}</strong>],
    ["state", (kernel) => <StateMark shown={shownKernel(kernel.state)} />],
    ["node", (kernel) => <span className="whitespace-nowrap">{kernel.agent}</span>],
    several && ["address", (kernel) => <span className="tabular-nums">{kernel.address}</span>],
    differ && ["resources", (kernel) => <span className="whitespace-nowrap">{amounts(kernel.slots)}</span>],
    running && [
      "cpu",
      (_, samples) => <Use points={rates(samples, "cpuSeconds")} write={(value) => percent(value * 100)} />,
    ],
    running && ["memory", (_, samples) => <Use points={levels(samples, "memory")} write={bytes} />],
    running && [
      "network",
      (_, samples) => {
        const down = rates(samples, "received").at(-1)?.[1];
        const up = rates(samples, "sent").at(-1)?.[1];
        if (down === undefined || up === undefined) return "";
        return <span className="whitespace-nowrap tabular-nums">{`↓ ${perSecond(down)} ↑ ${perSecond(up)}`}</span>;
      },
    ],
    running && gpu && ["gpu", (_, samples) => <Use points={levels(samples, "gpu")} write={percent} />],
    ended && [
      "exitCode",
      (kernel) => (
        <span title={kernel.reason}>
          {[kernel.exitCode?.toString(), kernel.reason && reasonWords(kernel.reason)].filter(Boolean).join(" · ")}
        </span>
      ),
    ],
    running && ["connect", (kernel) => <Connect session={session} kernel={kernel} />],
  ];
  const shown = columns.filter((column) => column !== false);
  return (
    <Card title={t("kernels")} flush>
      <Table
        label={t("kernels")}
        head={shown.map(([key]) => t(key))}
        rows={session.kernels.map((kernel) => ({
          key: kernel.id,
          cells: shown.map(([key, cell]) => <span key={key}>{cell(kernel, usage.get(kernel.hostname) ?? [])}</span>),
        }))}
      />
    </Card>
  );
}

/** How to get into a kernel: a shell here, and the command that leads there from another kernel, or from outside. */
function Connect({ session, kernel }: { session: Session; kernel: Kernel }) {
  const main = kernel.hostname === "main1";
  const command = main ? `retinue ssh ${session.spec?.name}` : `ssh ${kernel.hostname}`;
  return (
    <span className="inline-flex items-center gap-2 whitespace-nowrap">
      <Link
        className="inline-flex items-center gap-1"
        to={`/sessions/${session.id}/terminal?kernel=${kernel.hostname}`}
        aria-label={t("terminalIn", { name: kernel.hostname })}
      >
        <SquareTerminal size={15} aria-hidden="true" />
        {t("terminal")}
      </Link>
      <span
        className="inline-flex items-center rounded-md bg-sunken pl-2"
        title={t(main ? "fromOutside" : "fromOtherKernels")}
      >
        <code>{command}</code>
        <CopyButton text={command} />
      </span>
    </span>
  );
}

const SPARK_WIDTH = 64;
const SPARK_HEIGHT = 20;
const SPARK_SECONDS = 900;

/** The last value in words, and before it the line of the last quarter of an hour. */
function Use({ points, write }: { points: Points; write: (value: number) => string }) {
  const last = points.at(-1);
  if (last === undefined) return "";
  const recent = points.filter(([time]) => time >= last[0] - SPARK_SECONDS);
  const from = Math.min(recent[0]?.[0] ?? 0, last[0] - 60);
  const most = Math.max(...recent.map(([, value]) => value)) || 1;
  const line = recent
    .map(([time, value]) => {
      const x = (SPARK_WIDTH * (time - from)) / (last[0] - from);
      return `${x.toFixed(1)},${(SPARK_HEIGHT - 1 - ((SPARK_HEIGHT - 2) * value) / most).toFixed(1)}`;
    })
    .join(" ");
  return (
    <span className="inline-flex items-center gap-2 whitespace-nowrap">
      <svg width={SPARK_WIDTH} height={SPARK_HEIGHT} aria-hidden="true" className="shrink-0">
        <polyline points={line} className="fill-none stroke-accent" strokeWidth={1.25} />
      </svg>
      <span className="tabular-nums">{write(last[1])}</span>
    </span>
  );
}

type Range = "all" | "short";
const SHORT = 600;

function Charts({
  usage,
  turn,
  slots,
}: {
  usage: ReadonlyMap<string, Sample[]>;
  turn: number;
  slots: Record<string, string>;
}) {
  const [range, setRange] = useState<Range>("all");
  // biome-ignore lint/correctness/useExhaustiveDependencies: `turn` says that samples were added
  const series = useMemo(() => {
    const of = (make: (samples: Sample[]) => Points): Series[] =>
      [...usage].slice(0, MAX_LINES).map(([name, samples]) => ({ name, points: make(samples) }));
    return {
      cpu: of((samples) => rates(samples, "cpuSeconds")),
      memory: of((samples) => levels(samples, "memory")),
      received: of((samples) => rates(samples, "received")),
      sent: of((samples) => rates(samples, "sent")),
      gpu: of((samples) => levels(samples, "gpu")),
    };
  }, [usage, turn]);
  const seconds = range === "short" ? SHORT : undefined;
  const cpu = Number(slots.cpu);
  const memory = Number(slots.mem);
  const shown = { ...(seconds !== undefined && { seconds }), height: 120 };
  return (
    <Card
      title={t("useOverTime")}
      actions={
        <Choice
          label={t("rangeOfTime")}
          value={range}
          onChange={setRange}
          options={[
            { value: "all", label: t("lastHour") },
            { value: "short", label: t("lastMinutes", { count: SHORT / 60 }) },
          ]}
        />
      }
    >
      {usage.size > MAX_LINES && <p className="mb-2 text-sm text-quiet">{t("firstKernels", { count: MAX_LINES })}</p>}
      <div className="charts grid gap-x-6 gap-y-4 sm:grid-cols-2 2xl:grid-cols-4">
        <Chart
          title={`${t("cpu")} (${t("processors")})`}
          write={processors}
          series={series.cpu}
          {...shown}
          {...(cpu > 0 && { bound: cpu })}
        />
        <Chart
          title={t("memory")}
          write={bytes}
          series={series.memory}
          {...shown}
          {...(memory > 0 && { bound: memory })}
        />
        <Chart title={`${t("network")}, ${t("received")}`} write={perSecond} series={series.received} {...shown} />
        <Chart title={`${t("network")}, ${t("sent")}`} write={perSecond} series={series.sent} {...shown} />
        {series.gpu.some(({ points }) => points.length > 0) && (
          <Chart title={t("gpu")} write={percent} series={series.gpu} {...shown} bound={100} />
        )}
      </div>
    </Card>
  );
}

/** What was asked for, in short. */
function Facts({ session }: { session: Session }) {
  const spec = session.spec;
  const kernel = spec?.kernel;
  const template = spec?.template;
  const facts: [Key, React.ReactNode][] = [
    ["type", spec && t(typeWord(spec.type) as Key)],
    ["owner", session.owner],
    ["project", spec?.project],
    ["group", spec?.resourceGroup],
    [
      "image",
      kernel?.image ? (
        <code key="image" className="wrap-anywhere">
          {kernel.image}
        </code>
      ) : (
        t("hostRootShort")
      ),
    ],
    ["priority", spec?.priority?.toString()],
    ["timeLimit", spec?.timeLimit && span(secondsOf(spec.timeLimit))],
    ["template", template && `${template.name} v${template.version}`],
    ["created", moment(session.createTime)],
    ["retries", session.retries > 0 ? String(session.retries) : ""],
    [
      "labels",
      Object.keys(spec?.labels ?? {}).length > 0 && (
        <span className="flex flex-wrap gap-1">
          {Object.entries(spec?.labels ?? {}).map(([name, value]) => (
            <Badge key={name}>{value === "" ? name : `${name}=${value}`}</Badge>
          ))}
        </span>
      ),
    ],
    [
      "sessionId",
      <span key="id" className="inline-flex min-w-0 items-center gap-1">
        <code className="wrap-anywhere">{session.id}</code>
        <CopyButton text={session.id} />
      </span>,
    ],
  ];
  return (
    <Card title={t("details")}>
      <dl className="grid grid-cols-[minmax(6rem,auto)_minmax(0,1fr)] items-baseline gap-x-4 gap-y-1.5">
        {facts
          .filter(([, value]) => value)
          .map(([key, value]) => (
            <div key={key} className="contents">
              <dt className="text-sm text-quiet">{t(key)}</dt>
              <dd className="min-w-0 wrap-anywhere">{value}</dd>
            </div>
          ))}
      </dl>
      {kernel && kernel.command.length > 0 && (
        <Code className="mt-3" language="bash" label={t("command")} code={kernel.command.map(quoted).join(" ")} wrap />
      )}
    </Card>
  );
}

/** Why a session waits, in the scheduler's own numbers. */
function Why({ session }: { session: Session }) {
  const found = useLoaded(
    `explain ${session.id} ${session.reason}`,
    (signal) => sessions.explainSession({ session: session.id }, { signal }),
    5,
  );
  const why = found.value;
  return (
    <section className="why rounded-lg border border-line bg-card p-4" aria-label={t("whyWaits")}>
      <h2 className="text-base">{t("whyWaits")}</h2>
      <Trouble problem={found.problem} retry={found.reload} />
      {why === undefined ? (
        found.problem === undefined && <Skeleton className="mt-2" />
      ) : (
        <div className="mt-1 flex flex-col gap-3">
          <p title={why.reason}>
            {why.reason !== "" && <strong>{reasonWords(why.reason)}</strong>}{" "}
            {firstLine(why.message) || t("notLookedAt")}
          </p>
          {why.queuePosition > 0 && (
            <p className="text-quiet">{t("queuePlace", { place: why.queuePosition, length: why.queueLength })}</p>
          )}
          {why.estimatedStartTime && <p>{t("startsBy", { time: moment(why.estimatedStartTime) })}</p>}
          {why.shortfalls.length > 0 && (
            <ul className="flex flex-col gap-1">
              {why.shortfalls.map((short) => (
                <li key={short.hostname + short.slot}>
                  {t("shortfall", {
                    name: short.hostname,
                    slot: short.slot,
                    requested: short.requested,
                    node: short.bestAgent,
                    free: short.free,
                  })}
                </li>
              ))}
            </ul>
          )}
          {why.agents.length > 0 && (
            <ul className="flex flex-col gap-1 text-quiet">
              {why.agents.map((count) => (
                <li key={count.cause}>{t("nodesWithCause", { count: count.number, cause: count.cause })}</li>
              ))}
            </ul>
          )}
          {why.waitsFor.length > 0 && (
            <p>
              {t("waitsFor")}{" "}
              {why.waitsFor.map((each) => (
                <Link key={each.sessionId} className="mr-2" to={`/sessions/${each.sessionId}`}>
                  {each.name || each.sessionId}
                </Link>
              ))}
            </p>
          )}
          {why.advice.map((each) => (
            <p key={each}>{each}</p>
          ))}
          {why.wouldStartWith.length > 0 && (
            <div>
              <p>{t("wouldStartWith")}:</p>
              <ul className="mt-1 flex flex-wrap gap-2">
                {why.wouldStartWith.map((change) => (
                  <li key={change} className="inline-flex items-center rounded-md bg-sunken pl-2">
                    <code>{change}</code>
                    <CopyButton text={change} />
                  </li>
                ))}
              </ul>
            </div>
          )}
        </div>
      )}
    </section>
  );
}
