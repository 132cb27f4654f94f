import { useState } from "react";
import { Link } from "react-router";
import { Card, Figure } from "../../design/card";
import { Chart } from "../../design/chart";
import { Code } from "../../design/code";
import { Table } from "../../design/table";
import { isRunning } from "../../live/rollout";
import { Trouble } from "../../parts/basics";
import { useNow } from "../../parts/store";
import { between } from "../../text/format";
import { t } from "../../text/language";
import type { PartProps } from "../endpoint";
import { ReplicaMark } from "./marks";
import { RangeChoice } from "./range";
import { RolloutCard } from "./rollout";
import { latency, loadOf, milliseconds, millisecondsOf, over, type Range, since, sumOf } from "./stats";

/** What an endpoint does now: its numbers, its replicas, and what they wait for. */
export default function Overview({ endpoint, answer, stats, reload }: PartProps) {
  const now = useNow();
  const [range, setRange] = useState<Range>("3600");
  const seconds = Number(range);
  const { samples } = stats;
  const last = samples.at(-1);
  const requests = last === undefined ? undefined : sumOf(last, (revision) => revision.requestsPerSecond);
  const errors = last === undefined ? undefined : sumOf(last, (revision) => revision.errorsPerSecond);
  const p95 = last === undefined ? undefined : latency(last, "latencyP95");
  const revisions = [...new Set(samples.flatMap((sample) => sample.revisions.map(({ revision }) => revision)))];
  return (
    <div className="flex flex-col gap-4">
      <div className="grid grid-cols-2 gap-3 lg:grid-cols-4">
        <Figure
          label={t("readyReplicas")}
          value={`${last?.readyReplicas ?? endpoint.readyReplicas} / ${last?.target ?? endpoint.target}`}
          note={endpoint.targetReason}
        />
        <Figure
          label={t("requestsPerSecond")}
          value={requests === undefined ? "–" : requests.toFixed(1)}
          note={last && t("inFlightNow", { count: sumOf(last, ({ inFlight }) => inFlight) })}
        />
        <Figure
          label={t("latency95")}
          value={p95 === undefined ? "–" : milliseconds(p95)}
          note={p95 === undefined ? t("noRequestsNow") : t("latencyNote")}
        />
        <Figure
          label={t("errorsPerSecond")}
          value={errors === undefined ? "–" : errors.toFixed(1)}
          note={last && t("waitingNow", { count: last.held + sumOf(last, ({ pending }) => pending) })}
        />
      </div>
      <Trouble problem={stats.problem} />
      {isRunning(endpoint.rollout) && <RolloutCard endpoint={endpoint} reload={reload} />}
      <div className="flex justify-end">
        <RangeChoice value={range} onChange={setRange} />
      </div>
      <div className="grid gap-4 lg:grid-cols-2">
        <Card>
          <Chart
            title={t("requestsPerSecond")}
            seconds={seconds}
            write={(value) => `${value.toFixed(1)}/s`}
            series={[
              {
                name: t("allRevisions"),
                points: since(
                  stats,
                  (sample) => sample.requestsPerSecond,
                  (sample) => sumOf(sample, ({ requestsPerSecond }) => requestsPerSecond),
                ),
              },
              ...(revisions.length < 2 ? [] : revisions).map((number) => ({
                name: t("revisionNamed", { number }),
                points: over(
                  samples,
                  (sample) => sample.revisions.find(({ revision }) => revision === number)?.requestsPerSecond,
                ),
              })),
            ]}
          />
        </Card>
        <Card>
          <Chart
            title={t("latency")}
            seconds={seconds}
            write={milliseconds}
            series={[
              {
                name: t("median"),
                points: since(
                  stats,
                  ({ latencyP50 }) => millisecondsOf(latencyP50),
                  (sample) => latency(sample, "latencyP50"),
                ),
              },
              {
                name: t("percentile95"),
                points: since(
                  stats,
                  ({ latencyP95 }) => millisecondsOf(latencyP95),
                  (sample) => latency(sample, "latencyP95"),
                ),
              },
            ]}
          />
        </Card>
        <Card>
          <Chart
            title={t("errorsPerSecond")}
            seconds={seconds}
            write={(value) => `${value.toFixed(1)}/s`}
            series={[
              {
                name: t("errors5xx"),
                points: since(
                  stats,
                  (sample) => sample.errorsPerSecond,
                  (sample) => sumOf(sample, ({ errorsPerSecond }) => errorsPerSecond),
                ),
              },
            ]}
          />
        </Card>
        <Card>
          <Chart
            title={t("requestLoad")}
            seconds={seconds}
            write={(value) => String(Math.round(value))}
            series={[{ name: t("inFlightOrWaiting"), points: loadOf(stats) }]}
          />
        </Card>
      </div>
      <Card title={t("replicas")} flush>
        <Table
          label={t("replicas")}
          empty={t("noReplicas")}
          numeric={[t("revisionNumber"), t("age")]}
          head={[t("name"), t("state"), t("revisionNumber"), t("agent"), t("age"), t("why")]}
          rows={answer.replicas.map((replica) => ({
            key: replica.sessionId,
            cells: [
              <Link key="session" to={`/sessions/${replica.sessionId}`}>
                {replica.session}
              </Link>,
              <ReplicaMark key="state" state={replica.state} />,
              String(replica.revision),
              replica.agent,
              <span key="age" className="whitespace-nowrap">
                {replica.sinceTime ? between(replica.sinceTime, undefined, now) : ""}
              </span>,
              replica.message,
            ],
          }))}
        />
      </Card>
      {answer.failureOutput && (
        <Card title={t("failureOutput")}>
          <Code code={answer.failureOutput} language="text" label={t("failureOutput")} wrap />
        </Card>
      )}
    </div>
  );
}
