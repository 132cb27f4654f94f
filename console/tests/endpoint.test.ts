import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { EndpointSchema, RolloutState } from "../src/gen/retinue/manager/v1/endpoint_pb";
import { curl } from "../src/live/curl";
import { rolloutSteps } from "../src/live/rollout";
import { withShare } from "../src/live/traffic";

it("keeps the sum of shares at 100", () => {
  const three = [
    { revision: 1, percent: 34 },
    { revision: 2, percent: 33 },
    { revision: 3, percent: 33 },
  ];
  for (let percent = 0; percent <= 100; percent++) {
    const shares = withShare(three, 2, percent);
    expect(shares.reduce((sum, share) => sum + share.percent, 0)).toBe(100);
    expect(shares[1]?.percent).toBe(percent);
  }
  expect(withShare(three.slice(0, 1), 1, 20)).toEqual([{ revision: 1, percent: 100 }]);
  const all = [
    { revision: 2, percent: 100 },
    { revision: 1, percent: 0 },
  ];
  expect(withShare(all, 2, 60)).toEqual([
    { revision: 2, percent: 60 },
    { revision: 1, percent: 40 },
  ]);
});

it("draws where a canary is", () => {
  const canary = (state: RolloutState, step: number) =>
    rolloutSteps(
      create(EndpointSchema, {
        rollout: {
          fromRevision: 1,
          toRevision: 2,
          state,
          step,
          spec: { strategy: { case: "canary", value: { steps: [{ percent: 10 }, { percent: 50 }] } } },
        },
      }),
    ).map(({ label, place }) => `${label} ${place}`);
  expect(canary(RolloutState.PROGRESSING, 1)).toEqual([
    "Revision 1 done",
    "10 % done",
    "50 % current",
    "Revision 2 next",
  ]);
  expect(canary(RolloutState.DONE, 2).every((step) => step.endsWith("done"))).toBe(true);
  expect(canary(RolloutState.ROLLED_BACK, 0)[0]).toBe("Revision 1 current");
});

it("writes a request without its token", () => {
  const url = "http://llm.example/v1?q=a b";
  expect(curl({ method: "GET", url, body: "", contentType: "text/plain", withToken: false })).toBe(
    `curl -i \\\n  '${url}'`,
  );
  const post = curl({ method: "POST", url, body: "it's", contentType: "application/json", withToken: true });
  expect(post).toContain('-H "Authorization: Bearer $ENDPOINT_TOKEN"');
  expect(post).toContain(`--data-binary 'it'\\''s'`);
});
