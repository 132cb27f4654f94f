import { timestampDate } from "@bufbuild/protobuf/wkt";
import { useRef, useState } from "react";
import { Link } from "react-router";
import { sessions } from "../../api/client";
import { kernels as api } from "../../api/kernels";
import type { Problem } from "../../api/problem";
import { type Kernel, NetworkKind, type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { shownKernel } from "../../live/state";
import { useStream } from "../../live/stream";
import { StateMark, Table, Trouble } from "../../parts/basics";
import { Chart, type Series } from "../../parts/chart";
import { useLoaded, useNow } from "../../parts/store";
import { amounts, between, bytes, moment, secondsOf } from "../../text/format";
import { t } from "../../text/language";

const KEPT_SECONDS = 600;

/** What the measurements of one kernel came to. */
interface Sample {
  time: number;
  cpuSeconds: number;
  memory: number;
  received: number;
  sent: number;
}

export default function Overview({ session }: { session: Session }) {
  const usage = useUsage(session);
  return (
    <div className="overview">
      <Timeline session={session} />
      {session.state === SessionState.PENDING && <Why session={session} />}
      <Topology session={session} />
      <Table
        label={t("kernels")}
        head={[
          t("kernel"),
          t("state"),
          t("agent"),
          t("address"),
          t("use"),
          t("cpu"),
          t("memory"),
          t("network"),
          t("exitCode"),
          t("terminal"),
        ]}
        rows={session.kernels.map((kernel) => ({
          key: kernel.id,
          cells: kernelCells(session, kernel, usage.samples.get(kernel.hostname)),
        }))}
      />
      <Trouble problem={usage.problem} />
      {session.state === SessionState.RUNNING && (
        <div className="charts">
          <Chart
            title={t("cpu")}
            unit=""
            series={series(usage.samples, (now, before) => rate(now, before, "cpuSeconds"))}
          />
          <Chart title={t("memory")} unit="B" series={series(usage.samples, (now) => now.memory)} />
          <Chart
            title={`${t("network")}, ${t("received")}`}
            unit="B/s"
            series={series(usage.samples, (now, before) => rate(now, before, "received"))}
          />
          <Chart
            title={`${t("network")}, ${t("sent")}`}
            unit="B/s"
            series={series(usage.samples, (now, before) => rate(now, before, "sent"))}
          />
        </div>
      )}
    </div>
  );
}

function kernelCells(session: Session, kernel: Kernel, samples: Sample[] | undefined) {
  const now = samples?.at(-1);
  const before = samples?.at(-2);
  const rates =
    now && before
      ? { cpu: rate(now, before, "cpuSeconds"), down: rate(now, before, "received"), up: rate(now, before, "sent") }
      : undefined;
  return [
    kernel.hostname,
    <StateMark key="state" shown={shownKernel(kernel.state)} />,
    kernel.agent,
    kernel.address,
    amounts(kernel.slots),
    rates ? `${Math.round(rates.cpu * 100)} %` : "",
    now ? bytes(now.memory) : "",
    rates ? `↓${bytes(rates.down)}/s ↑${bytes(rates.up)}/s` : "",
    [kernel.exitCode?.toString(), kernel.reason].filter(Boolean).join(" "),
    session.state === SessionState.RUNNING ? (
      <Link key="terminal" to={`/sessions/${session.id}/terminal?kernel=${kernel.hostname}`}>
        {t("open")}
        <span className="hidden"> {kernel.hostname}</span>
      </Link>
    ) : (
      ""
    ),
  ];
}

function useUsage(session: Session) {
  const kept = useRef(new Map<string, Sample[]>());
  const [, setTurn] = useState(0);
  const [problem, setProblem] = useState<Problem>();
  const running = session.state === SessionState.RUNNING;
  useStream(
    `usage ${session.id} ${running}`,
    async (signal, arrived) => {
      if (!running) return;
      for await (const response of api.streamStats({ session: session.id }, { signal })) {
        arrived();
        for (const { hostname, usage } of response.kernels) {
          if (usage?.sampleTime === undefined) continue;
          const samples = kept.current.get(hostname) ?? [];
          const time = timestampDate(usage.sampleTime).getTime() / 1000;
          if ((samples.at(-1)?.time ?? 0) >= time) continue;
          samples.push({
            time,
            cpuSeconds: secondsOf(usage.cpuTime),
            memory: Number(usage.memoryBytes ?? 0n),
            received: Number(usage.receivedBytes ?? 0n),
            sent: Number(usage.sentBytes ?? 0n),
          });
          while ((samples[0]?.time ?? time) < time - KEPT_SECONDS) samples.shift();
          kept.current.set(hostname, samples);
        }
        setTurn((turn) => turn + 1);
      }
    },
    setProblem,
  );
  return { samples: kept.current, problem };
}

function rate(now: Sample, before: Sample, of: "cpuSeconds" | "received" | "sent"): number {
  return Math.max(0, (now[of] - before[of]) / (now.time - before.time));
}

function series(samples: ReadonlyMap<string, Sample[]>, value: (now: Sample, before: Sample) => number): Series[] {
  return [...samples].slice(0, 8).map(([name, kept]) => ({
    name,
    points: kept.slice(1).map((now, index) => [now.time, value(now, kept[index] ?? now)] as const),
  }));
}

/** The steps of a session with how long each took. */
function Timeline({ session }: { session: Session }) {
  const now = useNow();
  const { createTime, scheduleTime, startTime, endTime } = session;
  const steps = [
    { word: t("waiting"), from: createTime, to: scheduleTime ?? startTime ?? endTime },
    { word: "Preparing", from: scheduleTime, to: startTime ?? endTime },
    { word: t("running"), from: startTime, to: endTime },
  ];
  return (
    <ol className="timeline" aria-label={t("timeline")}>
      {steps.map(
        ({ word, from, to }) =>
          from && (
            <li key={word} title={moment(from)}>
              {word} <strong>{between(from, to, now)}</strong>
            </li>
          ),
      )}
      {endTime && (
        <li title={moment(endTime)}>
          {t("ended")} {session.reason} {session.exitCode !== undefined && `(${session.exitCode})`}
        </li>
      )}
    </ol>
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
  if (why === undefined) return <Trouble problem={found.problem} />;
  return (
    <section className="why" aria-label={t("why")}>
      <p>
        <code>{why.reason}</code> {why.message}
      </p>
      {why.queuePosition > 0 && (
        <p>
          {t("place")} {why.queuePosition} / {why.queueLength}
        </p>
      )}
      <ul>
        {why.shortfalls.map((short) => (
          <li key={short.hostname + short.slot}>
            {short.hostname} {short.slot}: {short.requested}, {short.bestAgent} {short.free}
          </li>
        ))}
        {why.agents.map((count) => (
          <li key={count.cause}>
            {count.number} × {count.cause}
          </li>
        ))}
      </ul>
      {why.wouldStartWith.length > 0 && (
        <>
          <p>{t("wouldStartWith")}:</p>
          <ul>
            {why.wouldStartWith.map((change) => (
              <li key={change}>
                <code>{change}</code>
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

const MAX_DRAWN = 32;

/** Who may reach whom: kernels on their nodes, bridges, and the tunnel between them. */
function Topology({ session }: { session: Session }) {
  const placed = session.kernels.filter((kernel) => kernel.agent !== "");
  if (placed.length === 0) return null;
  const nodes = Map.groupBy(placed.slice(0, MAX_DRAWN), (kernel) => kernel.agent);
  return (
    <section className="topology" aria-label={t("topology")}>
      {[...nodes].map(([agent, kernels]) => (
        <div key={agent} className="node">
          <h3>{agent}</h3>
          <ul>
            {kernels.map((kernel) => (
              <li key={kernel.id}>
                <StateMark shown={shownKernel(kernel.state)} />
                <strong>{kernel.hostname}</strong> <small>{kernel.address}</small>
              </li>
            ))}
          </ul>
        </div>
      ))}
      {placed.length > MAX_DRAWN && <p>+ {placed.length - MAX_DRAWN}</p>}
      <p className="wire">
        {session.network === NetworkKind.VXLAN ? "VXLAN" : session.network === NetworkKind.BRIDGE ? "bridge" : ""}
      </p>
    </section>
  );
}
