import { timestampDate } from "@bufbuild/protobuf/wkt";
import type { ResourceUsage } from "../gen/retinue/types/v1/usage_pb";
import { secondsOf } from "../text/format";

/** So long the server keeps samples, and so does the page. */
const KEPT_SECONDS = 3600;
/** What is older than the first is kept at the distance of the second: as the server has it. */
const FINE_SECONDS = 600;
const COARSE_SECONDS = 9.5;

/** What one kernel had used at a time. A number that is not measured is absent. */
export interface Sample {
  time: number;
  cpuSeconds: number | undefined;
  memory: number | undefined;
  received: number | undefined;
  sent: number | undefined;
  gpu: number | undefined;
}

type Counter = "cpuSeconds" | "received" | "sent";
export type Points = readonly (readonly [number, number])[];

function sampleOf(usage: ResourceUsage): Sample | undefined {
  if (usage.sampleTime === undefined) return undefined;
  const count = (value: bigint | undefined) => (value === undefined ? undefined : Number(value));
  return {
    time: timestampDate(usage.sampleTime).getTime() / 1000,
    cpuSeconds: usage.cpuTime && secondsOf(usage.cpuTime),
    memory: count(usage.memoryBytes),
    received: count(usage.receivedBytes),
    sent: count(usage.sentBytes),
    gpu: usage.gpuPercent,
  };
}

/** What the kernels of a session have used over the last hour: the server's samples, and what its stream adds. */
export class UsageHistory {
  readonly kernels = new Map<string, Sample[]>();

  /** Takes a measurement; one that is not newer than the last is known. Counters that fell are those of a new attempt. */
  add(hostname: string, usage: ResourceUsage | undefined): void {
    const sample = usage && sampleOf(usage);
    if (sample === undefined) return;
    let kept = this.kernels.get(hostname) ?? [];
    const last = kept.at(-1);
    if (last !== undefined && last.time >= sample.time) return;
    if ((last?.cpuSeconds ?? 0) > (sample.cpuSeconds ?? Number.POSITIVE_INFINITY)) kept = [];
    kept.push(sample);
    this.kernels.set(hostname, thinned(kept, sample.time));
  }
}

function thinned(samples: Sample[], now: number): Sample[] {
  const [first, second] = samples;
  const tooOld = first !== undefined && first.time < now - KEPT_SECONDS;
  const coarse = samples.findIndex(({ time }) => time >= now - FINE_SECONDS);
  const before = samples[coarse - 1];
  const earlier = samples[coarse - 2];
  // A sample that has just left the fine part stays if it is far enough from the one before it.
  if (before !== undefined && earlier !== undefined && before.time - earlier.time < COARSE_SECONDS) {
    samples.splice(coarse - 1, 1);
  }
  if (tooOld && second !== undefined) samples.shift();
  return samples;
}

/** A counter's growth per second from one sample to the next. */
export function rates(samples: readonly Sample[], of: Counter): Points {
  return samples.slice(1).flatMap((now, index) => {
    const before = samples[index];
    const from = before?.[of];
    const to = now[of];
    if (before === undefined || from === undefined || to === undefined) return [];
    return [[now.time, Math.max(0, (to - from) / (now.time - before.time))] as const];
  });
}

export function levels(samples: readonly Sample[], of: "memory" | "gpu"): Points {
  return samples.flatMap((sample) => {
    const value = sample[of];
    return value === undefined ? [] : [[sample.time, value] as const];
  });
}
