import { create } from "@bufbuild/protobuf";
import { useState } from "react";
import { allPages } from "../../api/client";
import { endpoints } from "../../api/endpoints";
import { type Problem, problemOf } from "../../api/problem";
import { Badge } from "../../design/badge";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { ConfirmDialog } from "../../design/dialog";
import { Diff } from "../../design/diff";
import { Select, Slider, TextField } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import { Empty, Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import { type Endpoint, EndpointSpecSchema, type Revision } from "../../gen/retinue/manager/v1/endpoint_pb";
import { isRunning } from "../../live/rollout";
import { type Share, withShare } from "../../live/traffic";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { manifestOf } from "../../spec/manifest";
import { moment } from "../../text/format";
import { t } from "../../text/language";
import type { PartProps } from "../endpoint";
import { TrafficBar } from "./marks";
import { RolloutCard } from "./rollout";

const PERIOD = 5;

/** Which revisions there are, what each of them gets, what differs between them, and the way back. */
export default function Revisions({ endpoint, answer, reload }: PartProps) {
  const found = useLoaded(
    `revisions ${endpoint.id} ${endpoint.newestRevision}`,
    (signal) =>
      allPages(async (pageToken) => {
        const page = await endpoints.listRevisions({ endpoint: endpoint.id, pageToken, pageSize: 500 }, { signal });
        return { items: page.revisions, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  const [back, setBack] = useState<number>();
  const revisions = found.value ?? [];
  const percent = (number: number) => endpoint.traffic.find(({ revision }) => revision === number)?.percent ?? 0;
  return (
    <div className="flex flex-col gap-4">
      <RolloutCard endpoint={endpoint} reload={reload} />
      <Traffic endpoint={endpoint} revisions={revisions} reload={reload} />
      <Trouble problem={found.problem} retry={found.reload} />
      <Card title={t("revisions")} flush>
        {found.value === undefined ? (
          <Skeleton className="p-4" />
        ) : (
          <Table
            label={t("revisions")}
            numeric={[t("replicas"), t("traffic")]}
            head={[
              t("revisionNumber"),
              t("author"),
              t("created"),
              t("replicas"),
              t("traffic"),
              t("image"),
              t("actions"),
            ]}
            rows={revisions.map((revision) => {
              const now = answer.revisions.find(({ number }) => number === revision.number) ?? revision;
              return {
                key: String(revision.number),
                cells: [
                  <span key="number" className="flex items-center gap-2 font-medium">
                    {revision.number}
                    {revision.number === endpoint.newestRevision && <Badge tone="accent">{t("newest")}</Badge>}
                    {revision.serveTime === undefined && <Badge>{t("neverServedAll")}</Badge>}
                    {now.failures > 0 && <Badge tone="bad">{t("failedStarts", { count: now.failures })}</Badge>}
                  </span>,
                  revision.author,
                  moment(revision.createTime),
                  t("readyOf", { ready: now.readyReplicas, target: now.replicas }),
                  `${percent(revision.number)} %`,
                  <Image key="image" name={revision.spec?.session?.kernel?.image ?? ""} />,
                  <Button
                    key="back"
                    size="small"
                    disabled={
                      isRunning(endpoint.rollout)
                        ? revision.number !== endpoint.rollout.fromRevision
                        : percent(revision.number) === 100
                    }
                    onClick={() => setBack(revision.number)}
                    aria-label={t("rollBackTo", { number: revision.number })}
                  >
                    {t("rollBackHere")}…
                  </Button>,
                ],
              };
            })}
          />
        )}
      </Card>
      <Compare revisions={revisions} />
      {back !== undefined && (
        <ConfirmDialog
          title={t("rollBackToQuestion", { number: back })}
          action={t("rollBack")}
          onClose={() => setBack(undefined)}
          onConfirm={async () => {
            await endpoints.rollBackEndpoint({ endpoint: endpoint.id, toRevision: back, etag: endpoint.etag });
            notify(t("rollBackBegun"));
            reload();
          }}
        >
          <p>{t("rollBackToWhat", { number: back })}</p>
        </ConfirmDialog>
      )}
    </div>
  );
}

function Image({ name }: { name: string }) {
  if (name === "") return <span className="text-quiet">{t("hostRootOfReplica")}</span>;
  return (
    <code className="block max-w-56 truncate" title={name}>
      {name}
    </code>
  );
}

/** Sliders that together are always 100. */
function Traffic({
  endpoint,
  revisions,
  reload,
}: {
  endpoint: Endpoint;
  revisions: readonly Revision[];
  reload: () => void;
}) {
  const stored: Share[] = endpoint.traffic.map(({ revision, percent }) => ({ revision, percent }));
  const [shares, setShares] = useState<Share[]>();
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const shown = (shares ?? stored).toSorted((one, other) => other.revision - one.revision);
  const running = isRunning(endpoint.rollout);
  const others = revisions.filter(({ number }) => !shown.some(({ revision }) => revision === number));
  const send = async (traffic: Share[]) => {
    await endpoints.setTraffic({ endpoint: endpoint.id, traffic });
    setShares(undefined);
    setProblem(undefined);
    reload();
  };
  const save = async () => {
    setBusy(true);
    try {
      await send(shown);
      notify(t("sharesSet"), {
        undo: () => void send(stored).catch((error) => notifyProblem(t("undoRefused"), error)),
      });
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  return (
    <Card
      title={t("traffic")}
      actions={
        shares !== undefined && (
          <>
            <Button size="small" onClick={() => setShares(undefined)}>
              {t("cancel")}
            </Button>
            <Button size="small" look="primary" busy={busy} onClick={() => void save()}>
              {t("setShares")}
            </Button>
          </>
        )
      }
    >
      <div className="flex flex-col gap-3">
        <TrafficBar shares={shown} />
        {running && <p className="text-sm text-quiet">{t("rolloutSetsShares")}</p>}
        {!running && shown.length < 2 && others.length === 0 && (
          <p className="text-sm text-quiet">{t("oneRevisionOnly")}</p>
        )}
        {!running &&
          (shown.length > 1 || shares !== undefined) &&
          shown.map(({ revision, percent }) => {
            const label = t("shareOfRevision", { number: revision });
            const set = (value: number) => setShares(withShare(shown, revision, value));
            return (
              <div key={revision} className="grid grid-cols-[6.5rem_1fr_4.5rem] items-center gap-3">
                <span className="font-medium">{t("revisionNamed", { number: revision })}</span>
                <Slider label={label} value={percent} max={100} words={`${percent} %`} onChange={set} />
                <TextField
                  label={t("percentOfRevision", { number: revision })}
                  labelHidden
                  inputMode="numeric"
                  value={String(percent)}
                  onChange={(text) => {
                    const value = Number(text);
                    if (/^\d+$/.test(text) && value <= 100) set(value);
                  }}
                />
              </div>
            );
          })}
        {!running && others.length > 0 && (
          <Select
            label={t("addRevision")}
            placeholder={t("chooseRevision")}
            className="max-w-56"
            value=""
            options={others.map(({ number }) => ({
              value: String(number),
              label: t("revisionNamed", { number }),
            }))}
            onChange={(number) => setShares([...shown, { revision: Number(number), percent: 0 }])}
          />
        )}
        <Trouble problem={problem} />
      </div>
    </Card>
  );
}

function textOf(revision: Revision | undefined): string {
  if (revision?.spec === undefined) return "";
  return manifestOf(create(EndpointSpecSchema, { revision: revision.spec }));
}

/** What differs between two revisions, line by line. */
function Compare({ revisions }: { revisions: readonly Revision[] }) {
  const [chosen, setChosen] = useState<{ before?: string; after?: string }>({});
  if (revisions.length < 2) return null;
  const before = chosen.before ?? String(revisions[1]?.number);
  const after = chosen.after ?? String(revisions[0]?.number);
  const of = (number: string) => textOf(revisions.find((revision) => String(revision.number) === number));
  const options = revisions.map(({ number }) => ({ value: String(number), label: t("revisionNamed", { number }) }));
  return (
    <Card title={t("compareRevisions")}>
      <div className="flex flex-col gap-3">
        <div className="flex flex-wrap gap-3">
          <Select
            label={t("compareBefore")}
            options={options}
            value={before}
            onChange={(value) => setChosen({ ...chosen, before: value })}
            className="w-44"
          />
          <Select
            label={t("compareAfter")}
            options={options}
            value={after}
            onChange={(value) => setChosen({ ...chosen, after: value })}
            className="w-44"
          />
        </div>
        {of(before) === of(after) ? (
          <Empty title={t("noDifference")} />
        ) : (
          <Diff label={t("compareRevisions")} before={of(before)} after={of(after)} />
        )}
      </div>
    </Card>
  );
}
