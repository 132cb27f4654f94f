import { type Duration, type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import { useRef, useState } from "react";
import { endpoints } from "../../api/endpoints";
import type { Problem } from "../../api/problem";
import type { ScalingDecision } from "../../gen/retinue/manager/v1/endpoint_pb";
import type {
  EndpointSample,
  RevisionStats,
  StreamEndpointStatsResponse,
} from "../../gen/retinue/manager/v1/endpoint_service_pb";
import { useStream } from "../../live/stream";
import { useLoaded } from "../../parts/store";
import { secondsOf } from "../../text/format";
import type { Key } from "../../text/language";

const KEPT = 900;
const INTERVAL = 2;

export type Point = readonly [number, number];

/** What an endpoint was measured at, oldest first. */
export interface Stats {
  /** Every minute of the last hours, from the manager. */
  history: readonly EndpointSample[];
  /** Changes of the target in these hours. */
  decisions: readonly ScalingDecision[];
  /** Every two seconds since the page is open. */
  samples: readonly StreamEndpointStatsResponse[];
  problem: Problem | undefined;
}

/** Reads the numbers of an endpoint as long as its page is open. */
export function useStats(id: string): Stats {
  const [problem, setProblem] = useState<Problem>();
  const [samples, setSamples] = useState<readonly StreamEndpointStatsResponse[]>([]);
  const of = useRef(id);
  if (of.current !== id) {
    of.current = id;
    setSamples([]);
  }
  useStream(
    `stats ${id}`,
    async (signal, arrived) => {
      const request = { endpoint: id, interval: { seconds: BigInt(INTERVAL) } };
      for await (const sample of endpoints.streamEndpointStats(request, { signal })) {
        arrived();
        setSamples((before) => [...before, sample].slice(-KEPT));
      }
    },
    setProblem,
  );
  // A manager that was just started, or does not lead, has none; what is measured now comes all the same.
  const found = useLoaded(`history ${id}`, (signal) => endpoints.getEndpointHistory({ endpoint: id }, { signal }), 60);
  return { history: found.value?.samples ?? [], decisions: found.value?.decisions ?? [], samples, problem };
}

/** A value from the history, and then from what is measured now. */
export function since(
  { history, samples }: Stats,
  before: (sample: EndpointSample) => number | undefined,
  now: (sample: StreamEndpointStatsResponse) => number | undefined,
): Point[] {
  const live = over(samples, now);
  const first = samples[0]?.time === undefined ? Number.POSITIVE_INFINITY : Number(samples[0].time.seconds);
  return [...over(history, before).filter(([time]) => time < first), ...live];
}

export function millisecondsOf(duration: Duration | undefined): number | undefined {
  return duration === undefined ? undefined : 1000 * secondsOf(duration);
}

export const RANGES = { "900": "minutes15", "3600": "hour1", "21600": "hours6" } as const satisfies Record<string, Key>;
export type Range = keyof typeof RANGES;

/** One value of every sample over time. */
export function over<Sample extends { time?: Timestamp | undefined }>(
  samples: readonly Sample[],
  value: (sample: Sample) => number | undefined,
): Point[] {
  return samples.flatMap((sample) => {
    const found = value(sample);
    return sample.time === undefined || found === undefined
      ? []
      : [[timestampDate(sample.time).getTime() / 1000, found] as const];
  });
}

export function sumOf(sample: StreamEndpointStatsResponse, value: (revision: RevisionStats) => number): number {
  return sample.revisions.reduce((sum, revision) => sum + value(revision), 0);
}

/** The slowest revision's latency in milliseconds; undefined while nothing is asked for. */
export function latency(
  sample: StreamEndpointStatsResponse,
  quantile: "latencyP50" | "latencyP95",
): number | undefined {
  const asked = sample.revisions.filter((revision) => revision.requestsPerSecond > 0 && revision[quantile]);
  return asked.length > 0 ? Math.max(...asked.map((revision) => 1000 * secondsOf(revision[quantile]))) : undefined;
}

export function milliseconds(value: number): string {
  return value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}

/** Requests on replicas, waiting for one, and held. */
export function loadOf(stats: Stats): Point[] {
  return since(
    stats,
    ({ inFlight, held }) => (inFlight === undefined ? undefined : inFlight + held),
    (sample) => sample.held + sumOf(sample, ({ inFlight, pending }) => inFlight + pending),
  );
}
