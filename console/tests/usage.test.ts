import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { ResourceUsageSchema } from "../src/gen/retinue/types/v1/usage_pb";
import { levels, rates, UsageHistory } from "../src/live/usage";

function usage(time: number, cpu: number, memory?: bigint) {
  return create(ResourceUsageSchema, {
    sampleTime: { seconds: BigInt(time), nanos: 0 },
    cpuTime: { seconds: BigInt(cpu), nanos: 0 },
    ...(memory !== undefined && { memoryBytes: memory }),
  });
}

it("makes rates of counters, and takes no sample twice", () => {
  const history = new UsageHistory();
  for (const sample of [usage(10, 0, 5n), usage(20, 5, 6n), usage(20, 5, 6n), usage(15, 1)])
    history.add("main1", sample);
  const kept = history.kernels.get("main1") ?? [];
  expect(rates(kept, "cpuSeconds")).toEqual([[20, 0.5]]);
  expect(levels(kept, "memory")).toEqual([
    [10, 5],
    [20, 6],
  ]);
});

it("has no number for what is not measured", () => {
  const history = new UsageHistory();
  history.add("main1", usage(10, 0));
  history.add("main1", undefined);
  expect(levels(history.kernels.get("main1") ?? [], "memory")).toEqual([]);
  expect(rates(history.kernels.get("main1") ?? [], "received")).toEqual([]);
});

it("begins anew with another attempt, whose counters begin at zero", () => {
  const history = new UsageHistory();
  for (const sample of [usage(10, 100), usage(20, 110), usage(30, 1), usage(40, 2)]) history.add("main1", sample);
  expect(rates(history.kernels.get("main1") ?? [], "cpuSeconds")).toEqual([[40, 0.1]]);
});

it("keeps an hour, the last ten minutes of it finely", () => {
  const history = new UsageHistory();
  for (let time = 0; time <= 7200; time += 2) history.add("main1", usage(time, time));
  const kept = history.kernels.get("main1") ?? [];
  expect(kept[0]?.time).toBeGreaterThanOrEqual(3588);
  expect(kept.filter(({ time }) => time >= 6600)).toHaveLength(301);
  expect(kept.length).toBeLessThan(301 + 310);
  expect(rates(kept, "cpuSeconds").every(([, rate]) => rate === 1)).toBe(true);
});
