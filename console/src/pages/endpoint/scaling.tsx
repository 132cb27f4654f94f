import { create } from "@bufbuild/protobuf";
import { useState } from "react";
import { endpoints } from "../../api/endpoints";
import { type Problem, problemOf } from "../../api/problem";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { Chart } from "../../design/chart";
import { Select, TextField } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import { Table } from "../../design/table";
import { type Endpoint, EndpointSpecSchema, type MetricReading } from "../../gen/retinue/manager/v1/endpoint_pb";
import { Trouble } from "../../parts/basics";
import { moment } from "../../text/format";
import { t } from "../../text/language";
import type { PartProps } from "../endpoint";
import { RangeChoice } from "./range";
import { loadOf, over, type Range, since } from "./stats";

function readingWords({ name, value, target, recommendation }: MetricReading): string {
  return t("reading", {
    name,
    value: value ?? t("unknownValue"),
    target,
    replicas: recommendation,
  });
}

/** How many replicas there are and were, what decided it, and the bounds that people set. */
export default function Scaling({ endpoint, answer, stats, reload }: PartProps) {
  const [range, setRange] = useState<Range>("3600");
  const changes = stats.decisions.length > 0 ? stats.decisions.toReversed() : answer.changes;
  return (
    <div className="flex flex-col gap-4">
      <Card title={t("replicasOverTime")} actions={<RangeChoice value={range} onChange={setRange} />}>
        <Chart
          title={t("targetReadyLoad")}
          write={(value) => String(Math.round(value * 10) / 10)}
          height={220}
          stepped
          seconds={Number(range)}
          bound={endpoint.spec?.scaling?.max}
          series={[
            {
              name: t("target"),
              points: since(
                stats,
                (sample) => sample.target,
                ({ target }) => target,
              ),
            },
            {
              name: t("ready"),
              points: since(
                stats,
                (sample) => sample.readyReplicas,
                ({ readyReplicas }) => readyReplicas,
              ),
            },
            { name: t("loadAsksFor"), points: over(stats.history, ({ recommendation }) => recommendation) },
            { name: t("loadRequests"), points: loadOf(stats) },
          ]}
        />
      </Card>
      <div className="grid gap-4 lg:grid-cols-2">
        <Bounds key={endpoint.etag} endpoint={endpoint} reload={reload} />
        <Floor endpoint={endpoint} reload={reload} />
      </div>
      {answer.lastDecision && (
        <Card title={t("lastDecision")}>
          <p className="font-medium">{answer.lastDecision.reason}</p>
          <p className="text-sm text-quiet">
            {moment(answer.lastDecision.decideTime)} ·{" "}
            {t("decisionNumbers", {
              ready: answer.lastDecision.ready,
              starting: answer.lastDecision.starting,
              floor: answer.lastDecision.floor,
            })}
          </p>
          <ul className="mt-2 text-sm">
            {answer.lastDecision.metrics.map((reading) => (
              <li key={reading.name}>{readingWords(reading)}</li>
            ))}
          </ul>
        </Card>
      )}
      <Card title={t("decisions")} flush>
        <Table
          label={t("decisions")}
          empty={t("noDecisions")}
          numeric={[t("target"), t("ready")]}
          head={[t("time"), t("target"), t("ready"), t("why"), t("measured")]}
          rows={changes.map((decision, index) => ({
            key: `${index}`,
            cells: [
              <span key="time" className="whitespace-nowrap tabular-nums">
                {moment(decision.decideTime)}
              </span>,
              `${decision.fromTarget} → ${decision.toTarget}`,
              String(decision.ready),
              decision.reason,
              <span key="measured" className="text-sm text-quiet">
                {decision.metrics.map(readingWords).join("; ")}
              </span>,
            ],
          }))}
        />
      </Card>
    </div>
  );
}

function whole(text: string): number | undefined {
  return /^\d{1,6}$/.test(text.trim()) ? Number(text) : undefined;
}

function Bounds({ endpoint, reload }: { endpoint: Endpoint; reload: () => void }) {
  const scaling = endpoint.spec?.scaling;
  const was = { min: scaling?.min ?? 1, max: scaling?.max ?? 1 };
  const [min, setMin] = useState(String(was.min));
  const [max, setMax] = useState(String(was.max));
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const least = whole(min);
  const most = whole(max);
  const send = async (bounds: { min: number; max: number }) => {
    await endpoints.updateEndpoint({
      endpoint: endpoint.id,
      spec: create(EndpointSpecSchema, { scaling: bounds }),
      updateMask: { paths: ["scaling.min", "scaling.max"] },
    });
    reload();
  };
  const save = async () => {
    if (least === undefined || most === undefined) return;
    setBusy(true);
    try {
      await send({ min: least, max: most });
      setProblem(undefined);
      notify(t("boundsSet", { min: least, max: most }), {
        undo: () => void send(was).catch((error) => notifyProblem(t("undoRefused"), error)),
      });
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  const error = (text: number | undefined) => (text === undefined ? t("wholeNumber") : undefined);
  return (
    <Card title={t("bounds")}>
      <div className="flex flex-col gap-3">
        <div className="grid grid-cols-2 gap-3">
          <TextField
            label={t("fewestReplicas")}
            help={t("zeroSleeps")}
            error={error(least)}
            inputMode="numeric"
            value={min}
            onChange={setMin}
          />
          <TextField label={t("mostReplicas")} error={error(most)} inputMode="numeric" value={max} onChange={setMax} />
        </div>
        <Trouble problem={problem} />
        <div>
          <Button
            look="primary"
            busy={busy}
            disabled={least === undefined || most === undefined || (least === was.min && most === was.max)}
            onClick={() => void save()}
          >
            {t("saveEndpoint")}
          </Button>
        </div>
      </div>
    </Card>
  );
}

const HOURS = ["1", "4", "24", "168"] as const;

function Floor({ endpoint, reload }: { endpoint: Endpoint; reload: () => void }) {
  const floor = endpoint.scalingFloor;
  const [replicas, setReplicas] = useState("2");
  const [hours, setHours] = useState<(typeof HOURS)[number]>("1");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const wanted = whole(replicas);
  const set = async (count: number) => {
    setBusy(true);
    try {
      await endpoints.setScalingFloor({
        endpoint: endpoint.id,
        replicas: count,
        duration: count > 0 ? { seconds: BigInt(3600 * Number(hours)) } : undefined,
      });
      setProblem(undefined);
      notify(count > 0 ? t("floorSet", { count }) : t("floorTaken"));
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
    reload();
  };
  return (
    <Card title={t("floorForATime")}>
      <div className="flex flex-col gap-3">
        {floor === undefined || floor.replicas === 0 ? (
          <p className="text-sm text-quiet">{t("floorHelp")}</p>
        ) : (
          <p>{t("floorHolds", { count: floor.replicas, time: moment(floor.endTime) })}</p>
        )}
        <div className="grid grid-cols-2 gap-3">
          <TextField
            label={t("replicasAtLeast")}
            inputMode="numeric"
            error={wanted === undefined ? t("wholeNumber") : undefined}
            value={replicas}
            onChange={setReplicas}
          />
          <Select
            label={t("holdsHowLong")}
            value={hours}
            onChange={setHours}
            options={HOURS.map((value) => ({ value, label: t("hours", { count: Number(value) }) }))}
          />
        </div>
        <Trouble problem={problem} />
        <div className="flex gap-2">
          <Button busy={busy} disabled={wanted === undefined || wanted === 0} onClick={() => void set(wanted ?? 0)}>
            {t("setFloor")}
          </Button>
          {floor !== undefined && floor.replicas > 0 && (
            <Button look="quiet" busy={busy} onClick={() => void set(0)}>
              {t("takeFloor")}
            </Button>
          )}
        </div>
      </div>
    </Card>
  );
}
