import { timestampDate } from "@bufbuild/protobuf/wkt";
import { useState } from "react";
import { Link, useSearchParams } from "react-router";
import { allPages } from "../api/client";
import { endpoints } from "../api/endpoints";
import { type Problem, problemOf } from "../api/problem";
import { type Endpoint, EndpointState, ReplicaState, RolloutState } from "../gen/retinue/manager/v1/endpoint_pb";
import { Conditions, Table, Trouble } from "../parts/basics";
import { Chart } from "../parts/chart";
import { useLoaded } from "../parts/store";
import { moment } from "../text/format";
import { t } from "../text/language";

const PERIOD = 5;

function word(names: Record<number, string>, value: number): string {
  return (names[value] ?? String(value)).toLowerCase().replaceAll("_", " ");
}

function traffic(endpoint: Endpoint): string {
  return endpoint.traffic.map(({ revision, percent }) => `${revision}: ${percent} %`).join(" · ");
}

/** All endpoints; one of them with its replicas, its traffic and the decisions of the autoscaler. */
export default function Endpoints() {
  const [parameters, setParameters] = useSearchParams();
  const chosen = parameters.get("endpoint") ?? "";
  const found = useLoaded(
    "endpoints",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await endpoints.listEndpoints({ pageToken, pageSize: 500 }, { signal });
        return { items: page.endpoints, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  return (
    <>
      <h1>{t("endpoints")}</h1>
      <Trouble problem={found.problem} retry={found.reload} />
      <Table
        label={t("endpoints")}
        head={[t("name"), t("project"), t("state"), t("replicas"), t("traffic"), t("address"), t("why")]}
        rows={(found.value ?? []).map((endpoint) => ({
          key: endpoint.id,
          cells: [
            <button key="name" type="button" className="plain" onClick={() => setParameters({ endpoint: endpoint.id })}>
              {endpoint.spec?.name}
            </button>,
            endpoint.spec?.project,
            word(EndpointState, endpoint.state),
            `${endpoint.readyReplicas} ${t("ready")} / ${endpoint.target}`,
            traffic(endpoint),
            endpoint.url,
            endpoint.targetReason,
          ],
        }))}
      />
      {chosen && <Detail key={chosen} id={chosen} />}
    </>
  );
}

function Detail({ id }: { id: string }) {
  const [problem, setProblem] = useState<Problem>();
  const found = useLoaded(
    `endpoint ${id}`,
    (signal) => endpoints.explainEndpoint({ endpoint: id }, { signal }),
    PERIOD,
  );
  const answer = found.value;
  const endpoint = answer?.endpoint;
  if (answer === undefined || endpoint === undefined) return <Trouble problem={found.problem} />;
  const change = async (call: typeof endpoints.promoteRollout | typeof endpoints.rollBackEndpoint) => {
    try {
      await call({ endpoint: id, etag: endpoint.etag });
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    found.reload();
  };
  const decisions = answer.changes.toReversed().flatMap(({ decideTime, toTarget }) => {
    return decideTime ? [[timestampDate(decideTime).getTime() / 1000, toTarget] as const] : [];
  });
  const rollout = endpoint.rollout;
  return (
    <section aria-label={endpoint.spec?.name}>
      <div className="bar-top">
        <h2>{endpoint.spec?.name}</h2>
        <span>{word(EndpointState, endpoint.state)}</span>
        <span className="grow" />
        {rollout && (
          <span>
            {rollout.fromRevision} → {rollout.toRevision}: {word(RolloutState, rollout.state)} {rollout.message}
          </span>
        )}
        <button type="button" onClick={() => void change(endpoints.promoteRollout)}>
          promote
        </button>
        <button type="button" onClick={() => void change(endpoints.rollBackEndpoint)}>
          rollback
        </button>
      </div>
      <Trouble problem={problem ?? found.problem} />
      <Conditions conditions={endpoint.conditions} />
      <Table
        label={t("replicas")}
        head={[t("name"), t("revisionNumber"), t("state"), t("agent"), t("why")]}
        rows={answer.replicas.map((replica) => ({
          key: replica.sessionId,
          cells: [
            <Link key="session" to={`/sessions/${replica.sessionId}`}>
              {replica.session}
            </Link>,
            String(replica.revision),
            word(ReplicaState, replica.state),
            replica.agent,
            replica.message,
          ],
        }))}
      />
      <Table
        label={t("revisionNumber")}
        head={[t("revisionNumber"), t("author"), t("created"), t("replicas"), t("traffic")]}
        rows={answer.revisions.map((revision) => ({
          key: String(revision.number),
          cells: [
            String(revision.number),
            revision.author,
            moment(revision.createTime),
            `${revision.readyReplicas} ${t("ready")} / ${revision.replicas}`,
            `${endpoint.traffic.find((share) => share.revision === revision.number)?.percent ?? 0} %`,
          ],
        }))}
      />
      {decisions.length > 1 && (
        <Chart title={t("target")} unit="" series={[{ name: t("target"), points: decisions }]} />
      )}
      <Table
        label={t("decisions")}
        head={[t("time"), t("target"), t("why")]}
        rows={[...(answer.lastDecision ? [answer.lastDecision] : []), ...answer.changes].map((decision, index) => ({
          key: `${index}`,
          cells: [
            moment(decision.decideTime),
            `${decision.fromTarget} → ${decision.toTarget}`,
            [
              decision.reason,
              ...decision.metrics.map((metric) => `${metric.name} ${metric.value ?? "?"} / ${metric.target}`),
            ].join(" · "),
          ],
        }))}
      />
      {answer.failureOutput && <pre>{answer.failureOutput}</pre>}
    </section>
  );
}
