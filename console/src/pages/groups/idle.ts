import { create } from "@bufbuild/protobuf";
import type { Duration } from "@bufbuild/protobuf/wkt";
import {
  IdleJoin,
  type IdlePolicy,
  IdlePolicySchema,
  UtilizationOperator,
  UtilizationPolicySchema,
} from "../../gen/retinue/manager/v1/idle_pb";
import { type Change, differing, UnreadableField } from "../../parts/changes";
import { t } from "../../text/administration";
import { durationOf, durationSeconds, durationText } from "../../text/duration";

/** An idle policy as it is typed; what is empty is not set. */
export interface IdleForm {
  grace: string;
  warning: string;
  extension: string;
  interaction: string;
  lifetime: string;
  window: string;
  cpu: string;
  mem: string;
  operator: "" | "all" | "any";
  join: "" | "all" | "any";
}

const OPERATORS = { "": UtilizationOperator.UNSPECIFIED, all: UtilizationOperator.ALL, any: UtilizationOperator.ANY };
const JOINS = { "": IdleJoin.UNSPECIFIED, all: IdleJoin.ALL, any: IdleJoin.ANY };
const CHOICES = ["", "all", "any"] as const;

export function idleFormOf(policy: IdlePolicy | undefined): IdleForm {
  const threshold = (slot: string) => policy?.utilization?.thresholds[slot]?.toString() ?? "";
  return {
    grace: durationText(policy?.gracePeriod),
    warning: durationText(policy?.warning),
    extension: durationText(policy?.maxExtension),
    interaction: durationText(policy?.interactionTimeout),
    lifetime: durationText(policy?.maxLifetime),
    window: durationText(policy?.utilization?.window),
    cpu: threshold("cpu"),
    mem: threshold("mem"),
    operator: CHOICES[policy?.utilization?.operator ?? 0] ?? "",
    join: CHOICES[policy?.join ?? 0] ?? "",
  };
}

/** Reads a length of time for a field of a request. Throws UnreadableField. */
export function spanOf(path: string, text: string): Duration | undefined {
  const seconds = durationSeconds(text);
  if (Number.isNaN(seconds)) throw new UnreadableField(path, t("noDuration"));
  return seconds === undefined ? undefined : durationOf(seconds);
}

/** Returns the policy; undefined when nothing is set. `path` is where it is in the request. Throws UnreadableField. */
export function idlePolicyOf(path: string, form: IdleForm): IdlePolicy | undefined {
  if (Object.values(form).every((text) => text.trim() === "")) return undefined;
  const percent = (slot: "cpu" | "mem"): [string, number][] => {
    const text = form[slot].trim();
    if (text === "") return [];
    if (!/^\d+(\.\d+)?$/.test(text))
      throw new UnreadableField(`${path}.utilization.thresholds['${slot}']`, t("noPercent"));
    return [[slot, Number(text)]];
  };
  const utilization = form.window.trim() + form.cpu.trim() + form.mem.trim() + form.operator;
  return create(IdlePolicySchema, {
    gracePeriod: spanOf(`${path}.grace_period`, form.grace),
    warning: spanOf(`${path}.warning`, form.warning),
    maxExtension: spanOf(`${path}.max_extension`, form.extension),
    interactionTimeout: spanOf(`${path}.interaction_timeout`, form.interaction),
    maxLifetime: spanOf(`${path}.max_lifetime`, form.lifetime),
    join: JOINS[form.join],
    ...(utilization !== "" && {
      utilization: create(UtilizationPolicySchema, {
        window: spanOf(`${path}.utilization.window`, form.window),
        thresholds: Object.fromEntries([...percent("cpu"), ...percent("mem")]),
        operator: OPERATORS[form.operator],
      }),
    }),
  });
}

/** What differs between two policies, in words. */
export function idleChanges(before: IdleForm, after: IdleForm): Change[] {
  const choice = (value: IdleForm["join"]) => (value === "" ? "" : t(value === "all" ? "together" : "eachByItself"));
  const operator = (value: IdleForm["operator"]) =>
    value === "" ? "" : t(value === "all" ? "ofAllSlots" : "ofAnySlot");
  const percent = (text: string) => (text.trim() === "" ? "" : `${text.trim()} %`);
  return differing([
    { label: t("idleInteraction"), before: before.interaction, after: after.interaction.trim() },
    { label: t("idleLifetime"), before: before.lifetime, after: after.lifetime.trim() },
    { label: t("idleWindow"), before: before.window, after: after.window.trim() },
    { label: t("idleCpu"), before: percent(before.cpu), after: percent(after.cpu) },
    { label: t("idleMem"), before: percent(before.mem), after: percent(after.mem) },
    { label: t("idleOperator"), before: operator(before.operator), after: operator(after.operator) },
    { label: t("idleJoin"), before: choice(before.join), after: choice(after.join) },
    { label: t("idleGrace"), before: before.grace, after: after.grace.trim() },
    { label: t("idleWarning"), before: before.warning, after: after.warning.trim() },
    { label: t("idleExtension"), before: before.extension, after: after.extension.trim() },
  ]);
}
