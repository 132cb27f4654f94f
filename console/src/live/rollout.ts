import { type Endpoint, type Rollout, RolloutState } from "../gen/retinue/manager/v1/endpoint_pb";
import { secondsOf, span } from "../text/format";
import { t } from "../text/language";

export interface RolloutStep {
  label: string;
  note: string;
  place: "done" | "current" | "next";
}

/** Whether a rollout still moves or waits. */
export function isRunning(rollout: Rollout | undefined): rollout is Rollout {
  return (
    rollout !== undefined &&
    (rollout.state === RolloutState.PROGRESSING ||
      rollout.state === RolloutState.PAUSED ||
      rollout.state === RolloutState.ROLLING_BACK)
  );
}

/** The steps of a rollout from the old revision to the new one, and which of them it is in. */
export function rolloutSteps(endpoint: Endpoint): RolloutStep[] {
  const rollout = endpoint.rollout;
  if (rollout === undefined) return [];
  const share = endpoint.traffic.find(({ revision }) => revision === rollout.toRevision)?.percent ?? 0;
  const strategy = rollout.spec?.strategy;
  const from = { label: t("revisionNamed", { number: rollout.fromRevision }), note: t("served") };
  let middle: { label: string; note: string }[];
  let current: number;
  if (strategy?.case === "canary") {
    middle = strategy.value.steps.map(({ percent, hold }) => ({
      label: `${percent} %`,
      note: hold === undefined ? t("untilPromoted") : t("holdsFor", { time: span(secondsOf(hold)) }),
    }));
    current = rollout.step + 1;
  } else if (strategy?.case === "blueGreen") {
    middle = [
      { label: t("newReplicas"), note: strategy.value.automatic ? t("thenMoves") : t("untilPromoted") },
      { label: t("requestsMoved"), note: t("oldStays", { time: span(secondsOf(strategy.value.keepOld)) }) },
    ];
    current = share === 100 ? 2 : 1;
  } else {
    middle = [{ label: t("oneByOne"), note: t("newHas", { percent: share }) }];
    current = 1;
  }
  const last = { label: t("revisionNamed", { number: rollout.toRevision }), note: t("servesAll") };
  const steps = [from, ...middle, last];
  if (rollout.state === RolloutState.DONE) current = steps.length - 1;
  if (rollout.state === RolloutState.ROLLED_BACK) current = 0;
  return steps.map((step, at) => ({
    ...step,
    place: at < current || rollout.state === RolloutState.DONE ? "done" : at === current ? "current" : "next",
  }));
}
