import { create } from "@bufbuild/protobuf";
import {
  EgressPolicy,
  MountOwnerSchema,
  type MountRoot,
  MountRootSchema,
  type ResourceGroup,
  ResourceGroupSchema,
} from "../../gen/retinue/manager/v1/fleet_service_pb";
import {
  type AgentStrategy,
  AgentStrategySchema,
  ExternalServerSchema,
  PreemptionMode,
  PreemptionOrder,
  PreemptionPolicySchema,
  ReservationPolicySchema,
  type SchedulingPolicy,
  SchedulingPolicySchema,
  type SessionStrategy,
  SessionStrategySchema,
} from "../../gen/retinue/manager/v1/scheduling_policy_pb";
import { SessionType } from "../../gen/retinue/manager/v1/session_pb";
import { Isolation } from "../../gen/retinue/types/v1/isolation_pb";
import { PullPolicy } from "../../gen/retinue/types/v1/pull_policy_pb";
import { type Change, differing, UnreadableField } from "../../parts/changes";
import { type Key, t } from "../../text/administration";
import { durationText } from "../../text/duration";
import { type IdleForm, idleChanges, idleFormOf, idlePolicyOf, spanOf } from "./idle";

export type Order = "fifo" | "lifo" | "drf" | "fairShare" | "external" | "custom";
export type Packing = "concentrated" | "dispersed" | "roundRobin" | "external" | "custom";

/** A resource group as it is typed; what is empty has its default. */
export interface GroupForm {
  name: string;
  order: Order;
  orderName: string;
  skipAfter: string;
  halfLife: string;
  lookBack: string;
  packing: Packing;
  packingName: string;
  slotPriority: string;
  server: string;
  serverDeadline: string;
  reserveTries: string;
  reserveAfter: string;
  preemption: string;
  preemptionOrder: string;
  hold: string;
  minRuntime: string;
  pendingTimeout: string;
  maxKernels: string;
  types: string[];
  isolations: string[];
  isolation: string;
  pull: string;
  egress: string;
  registries: string;
  mounts: string;
  startTimeout: string;
  maxGrace: string;
  weights: string;
  lossPercent: string;
  lossAgents: string;
  lossWindow: string;
  idle: IdleForm;
}

const number = (value: number | undefined) => (value ? String(value) : "");

function reverse(values: object, kept: readonly string[]): Record<string, number> {
  return Object.fromEntries(Object.entries(values).filter(([name]) => kept.includes(name))) as Record<string, number>;
}

export const TYPES = ["INTERACTIVE", "BATCH", "INFERENCE", "SYSTEM"] as const;
export const ISOLATIONS = ["PROCESS", "CONTAINER", "VM"] as const;
export const PULLS = ["ALWAYS", "MISSING", "NEVER"] as const;
export const PREEMPTIONS = ["OFF", "TERMINATE", "REQUEUE"] as const;
export const PREEMPTION_ORDERS = ["NEWEST", "OLDEST", "FEWEST_SESSIONS", "SMALLEST_RESOURCES"] as const;
const TYPE_NUMBERS = reverse(SessionType, TYPES);
const ISOLATION_NUMBERS = reverse(Isolation, ISOLATIONS);
const PULL_NUMBERS = reverse(PullPolicy, PULLS);
const PREEMPTION_NUMBERS = reverse(PreemptionMode, PREEMPTIONS);
const ORDER_NUMBERS = reverse(PreemptionOrder, PREEMPTION_ORDERS);

/** Words of what is chosen from a list. */
export const WORDS: Record<string, Key> = {
  INTERACTIVE: "interactive",
  BATCH: "batch",
  INFERENCE: "inference",
  SYSTEM: "system",
  PROCESS: "isolationProcess",
  CONTAINER: "isolationContainer",
  VM: "isolationVm",
  ALWAYS: "pullAlways",
  MISSING: "pullMissing",
  NEVER: "pullNever",
  OFF: "preemptionOff",
  TERMINATE: "preemptionTerminate",
  REQUEUE: "preemptionRequeue",
  NEWEST: "orderNewest",
  OLDEST: "orderOldest",
  FEWEST_SESSIONS: "orderFewest",
  SMALLEST_RESOURCES: "orderSmallest",
  allow: "egressAllow",
  deny: "egressDeny",
  fifo: "orderFifo",
  lifo: "orderLifo",
  drf: "orderDrf",
  fairShare: "orderFairShare",
  external: "byServer",
  custom: "byPlugin",
  concentrated: "packFullest",
  dispersed: "packEmptiest",
  roundRobin: "packInTurn",
};

export const word = (value: string) => (value === "" ? "" : t(WORDS[value] ?? "notSet"));
const words = (values: readonly string[]) => values.map(word).join(", ");

/** One root as a line: `PATH[:rw][,uid=…][,gid=…][,projects=a+b]`, as `retinue groups` takes it. */
export function rootLine(root: MountRoot): string {
  const parts = root.writable ? ["rw"] : [];
  if (root.owner?.account) parts.push("uid=account");
  else if (root.owner?.uid) parts.push(`uid=${root.owner.uid}`);
  if (root.owner?.gid) parts.push(`gid=${root.owner.gid}`);
  if (root.projects.length > 0) parts.push(`projects=${root.projects.join("+")}`);
  return parts.length > 0 ? `${root.path}:${parts.join(",")}` : root.path;
}

/** Reads such a line. Throws UnreadableField. */
export function rootOf(line: string, at: number): MountRoot {
  const colon = line.lastIndexOf(":");
  const path = colon > 0 ? line.slice(0, colon) : line;
  const root = create(MountRootSchema, { path });
  const owner = create(MountOwnerSchema);
  const options = colon > 0 ? line.slice(colon + 1).split(",") : [];
  for (const option of options) {
    const [name, value = ""] = option.split("=");
    if (option === "rw") root.writable = true;
    else if (option === "uid=account") owner.account = true;
    else if (name === "uid" && /^\d+$/.test(value)) owner.uid = Number(value);
    else if (name === "gid" && /^\d+$/.test(value)) owner.gid = Number(value);
    else if (name === "projects" && value !== "") root.projects = value.split("+");
    else throw new UnreadableField(`resource_group.mount_roots[${at}]`, t("noMountOption", { option }));
  }
  if (owner.account || owner.uid > 0 || owner.gid > 0) root.owner = owner;
  return root;
}

const lines = (text: string) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

export function formOf(group: ResourceGroup): GroupForm {
  const policy = group.schedulingPolicy;
  const order = policy?.sessionStrategy?.strategy;
  const packing = policy?.agentStrategy?.strategy;
  const preemption = policy?.preemption;
  return {
    name: group.name,
    order: order?.case ?? "drf",
    orderName: order?.case === "custom" ? order.value.name : "",
    skipAfter: order?.case === "fifo" ? number(order.value.maxTriesBeforeSkip) : "",
    halfLife: order?.case === "fairShare" ? durationText(order.value.halfLife) : "",
    lookBack: order?.case === "fairShare" ? durationText(order.value.lookBack) : "",
    packing: packing?.case ?? "concentrated",
    packingName: packing?.case === "custom" ? packing.value.name : "",
    slotPriority: packing?.value && "slotPriority" in packing.value ? packing.value.slotPriority.join(", ") : "",
    server: policy?.externalServer?.address ?? "",
    serverDeadline: durationText(policy?.externalServer?.deadline),
    reserveTries: number(policy?.reservation?.afterTries),
    reserveAfter: durationText(policy?.reservation?.after),
    preemption: preemption?.mode ? (PreemptionMode[preemption.mode] ?? "OFF") : "OFF",
    preemptionOrder: preemption?.order ? (PreemptionOrder[preemption.order] ?? "NEWEST") : "NEWEST",
    hold: durationText(preemption?.hold),
    minRuntime: durationText(preemption?.minRuntime),
    pendingTimeout: durationText(policy?.pendingTimeout),
    maxKernels: number(policy?.maxKernelsPerAgent),
    types: group.sessionTypes.map((type) => SessionType[type] ?? ""),
    isolations: group.isolations.map((isolation) => Isolation[isolation] ?? ""),
    isolation: group.defaultIsolation ? (Isolation[group.defaultIsolation] ?? "") : "",
    pull: group.defaultPullPolicy ? (PullPolicy[group.defaultPullPolicy] ?? "") : "",
    egress: group.egress === EgressPolicy.DENY ? "deny" : "allow",
    registries: group.imageRegistries.join("\n"),
    mounts: group.mountRoots.map(rootLine).join("\n"),
    startTimeout: durationText(group.startTimeout),
    maxGrace: durationText(group.maxGrace),
    weights: Object.entries(group.ownerWeights)
      .sort(([one], [other]) => one.localeCompare(other))
      .map(([owner, weight]) => `${owner}=${weight}`)
      .join("\n"),
    lossPercent: number(group.massLossPercent),
    lossAgents: number(group.massLossAgents),
    lossWindow: durationText(group.massLossWindow),
    idle: idleFormOf(group.idlePolicy),
  };
}

const SCHEDULING = "resource_group.scheduling_policy";

function whole(path: string, text: string): number {
  if (text.trim() === "") return 0;
  if (!/^\d{1,9}$/.test(text.trim())) throw new UnreadableField(path, t("noNumber"));
  return Number(text);
}

function sessionStrategyOf(form: GroupForm, before: SessionStrategy | undefined): SessionStrategy {
  const path = `${SCHEDULING}.session_strategy`;
  const kept = before?.strategy;
  switch (form.order) {
    case "fifo":
      return create(SessionStrategySchema, {
        strategy: {
          case: "fifo",
          value: { maxTriesBeforeSkip: whole(`${path}.fifo.max_tries_before_skip`, form.skipAfter) },
        },
      });
    case "fairShare":
      return create(SessionStrategySchema, {
        strategy: {
          case: "fairShare",
          value: {
            halfLife: spanOf(`${path}.fair_share.half_life`, form.halfLife),
            lookBack: spanOf(`${path}.fair_share.look_back`, form.lookBack),
            usageWeights: kept?.case === "fairShare" ? kept.value.usageWeights : {},
          },
        },
      });
    case "custom": {
      const same = kept?.case === "custom" && kept.value.name === form.orderName.trim() ? kept.value : undefined;
      return create(SessionStrategySchema, {
        strategy: {
          case: "custom",
          value: { name: form.orderName.trim(), options: same?.options ?? {}, fallback: same?.fallback ?? 0 },
        },
      });
    }
    case "external":
      return create(SessionStrategySchema, {
        strategy: { case: "external", value: kept?.case === "external" ? kept.value : {} },
      });
    default:
      return create(SessionStrategySchema, { strategy: { case: form.order, value: {} } });
  }
}

function agentStrategyOf(form: GroupForm, before: AgentStrategy | undefined): AgentStrategy {
  const kept = before?.strategy;
  const slotPriority = form.slotPriority.split(/[\s,]+/).filter(Boolean);
  switch (form.packing) {
    case "roundRobin":
      return create(AgentStrategySchema, { strategy: { case: "roundRobin", value: {} } });
    case "external": {
      const fallback = kept?.case === "external" ? kept.value.fallback : 0;
      return create(AgentStrategySchema, { strategy: { case: "external", value: { fallback, slotPriority } } });
    }
    case "custom": {
      const same = kept?.case === "custom" && kept.value.name === form.packingName.trim() ? kept.value : undefined;
      return create(AgentStrategySchema, {
        strategy: {
          case: "custom",
          value: {
            name: form.packingName.trim(),
            options: same?.options ?? {},
            fallback: same?.fallback ?? 0,
            slotPriority,
          },
        },
      });
    }
    default:
      return create(AgentStrategySchema, { strategy: { case: form.packing, value: { slotPriority } } });
  }
}

function schedulingOf(form: GroupForm, before: SchedulingPolicy | undefined): SchedulingPolicy {
  const reservation = form.reserveTries.trim() !== "" || form.reserveAfter.trim() !== "";
  const off = form.preemption === "OFF";
  return create(SchedulingPolicySchema, {
    sessionStrategy: sessionStrategyOf(form, before?.sessionStrategy),
    agentStrategy: agentStrategyOf(form, before?.agentStrategy),
    pendingTimeout: spanOf(`${SCHEDULING}.pending_timeout`, form.pendingTimeout),
    maxKernelsPerAgent: whole(`${SCHEDULING}.max_kernels_per_agent`, form.maxKernels),
    ...((form.order === "external" || form.packing === "external") && {
      externalServer: create(ExternalServerSchema, {
        address: form.server.trim(),
        deadline: spanOf(`${SCHEDULING}.external_server.deadline`, form.serverDeadline),
        tls: before?.externalServer?.tls,
      }),
    }),
    ...(reservation && {
      reservation: create(ReservationPolicySchema, {
        afterTries: whole(`${SCHEDULING}.reservation.after_tries`, form.reserveTries),
        after: spanOf(`${SCHEDULING}.reservation.after`, form.reserveAfter),
      }),
    }),
    ...(!off && {
      preemption: create(PreemptionPolicySchema, {
        mode: PREEMPTION_NUMBERS[form.preemption] ?? 0,
        order: ORDER_NUMBERS[form.preemptionOrder] ?? 0,
        hold: spanOf(`${SCHEDULING}.preemption.hold`, form.hold),
        minRuntime: spanOf(`${SCHEDULING}.preemption.min_runtime`, form.minRuntime),
      }),
    }),
  });
}

function weightsOf(text: string): Record<string, number> {
  const found: Record<string, number> = {};
  for (const line of lines(text)) {
    const [, owner, weight] = /^([a-z0-9-]+)\s*=\s*(\d+)$/.exec(line) ?? [];
    if (owner === undefined) throw new UnreadableField("resource_group.owner_weights", t("noWeight", { line }));
    found[owner] = Number(weight);
  }
  return found;
}

/** Returns the group as it was typed; what the form does not show stays as `before` has it. Throws UnreadableField. */
export function groupOf(form: GroupForm, before: ResourceGroup | undefined): ResourceGroup {
  const idlePolicy = idlePolicyOf("resource_group.idle_policy", form.idle);
  return create(ResourceGroupSchema, {
    name: form.name.trim(),
    etag: before?.etag ?? "",
    schedulingPolicy: schedulingOf(form, before?.schedulingPolicy),
    ownerWeights: weightsOf(form.weights),
    startTimeout: spanOf("resource_group.start_timeout", form.startTimeout),
    maxGrace: spanOf("resource_group.max_grace", form.maxGrace),
    egress: form.egress === "deny" ? EgressPolicy.DENY : EgressPolicy.ALLOW,
    mountRoots: lines(form.mounts).map(rootOf),
    imageRegistries: lines(form.registries),
    sessionTypes: form.types.flatMap((type) => TYPE_NUMBERS[type] ?? []),
    isolations: form.isolations.flatMap((isolation) => ISOLATION_NUMBERS[isolation] ?? []),
    defaultIsolation: ISOLATION_NUMBERS[form.isolation] ?? 0,
    defaultPullPolicy: PULL_NUMBERS[form.pull] ?? 0,
    massLossPercent: whole("resource_group.mass_loss_percent", form.lossPercent),
    massLossAgents: whole("resource_group.mass_loss_agents", form.lossAgents),
    massLossWindow: spanOf("resource_group.mass_loss_window", form.lossWindow),
    ...(idlePolicy && { idlePolicy }),
  });
}

/** A path of the update mask, and the fields of the form that it is made of. */
const PATHS: readonly [string, readonly (keyof GroupForm)[]][] = [
  ["scheduling_policy.session_strategy", ["order", "orderName", "skipAfter", "halfLife", "lookBack"]],
  ["scheduling_policy.agent_strategy", ["packing", "packingName", "slotPriority"]],
  ["scheduling_policy.external_server", ["server", "serverDeadline", "order", "packing"]],
  ["scheduling_policy.reservation", ["reserveTries", "reserveAfter"]],
  ["scheduling_policy.preemption", ["preemption", "preemptionOrder", "hold", "minRuntime"]],
  ["scheduling_policy.pending_timeout", ["pendingTimeout"]],
  ["scheduling_policy.max_kernels_per_agent", ["maxKernels"]],
  ["session_types", ["types"]],
  ["isolations", ["isolations"]],
  ["default_isolation", ["isolation"]],
  ["default_pull_policy", ["pull"]],
  ["egress", ["egress"]],
  ["image_registries", ["registries"]],
  ["mount_roots", ["mounts"]],
  ["start_timeout", ["startTimeout"]],
  ["max_grace", ["maxGrace"]],
  ["owner_weights", ["weights"]],
  ["mass_loss_percent", ["lossPercent"]],
  ["mass_loss_agents", ["lossAgents"]],
  ["mass_loss_window", ["lossWindow"]],
  ["idle_policy", ["idle"]],
];

/** Paths of the update mask of what differs: nothing else is sent, so that others' changes stay. */
export function changedPaths(before: GroupForm, after: GroupForm): string[] {
  const differs = (field: keyof GroupForm) => JSON.stringify(before[field]) !== JSON.stringify(after[field]);
  return PATHS.filter(([, fields]) => fields.some(differs)).map(([path]) => path);
}

const LABELS: readonly [keyof GroupForm, Key][] = [
  ["order", "sessionOrder"],
  ["orderName", "pluginName"],
  ["skipAfter", "skipAfter"],
  ["halfLife", "halfLife"],
  ["lookBack", "lookBack"],
  ["packing", "nodeOrder"],
  ["packingName", "pluginNameNodes"],
  ["slotPriority", "slotPriority"],
  ["server", "serverAddress"],
  ["serverDeadline", "serverDeadline"],
  ["reserveTries", "reserveTries"],
  ["reserveAfter", "reserveAfter"],
  ["preemption", "preemption"],
  ["preemptionOrder", "preemptionOrder"],
  ["hold", "preemptionHold"],
  ["minRuntime", "minRuntime"],
  ["pendingTimeout", "pendingTimeout"],
  ["maxKernels", "maxKernels"],
  ["types", "sessionTypes"],
  ["isolations", "isolations"],
  ["isolation", "defaultIsolation"],
  ["pull", "pullPolicy"],
  ["egress", "egress"],
  ["registries", "registries"],
  ["mounts", "mountRoots"],
  ["startTimeout", "startTimeout"],
  ["maxGrace", "maxGrace"],
  ["weights", "weights"],
  ["lossPercent", "lossPercent"],
  ["lossAgents", "lossAgents"],
  ["lossWindow", "lossWindow"],
];

/** What differs between two forms, in words. */
export function groupChanges(before: GroupForm, after: GroupForm): Change[] {
  const text = (value: GroupForm[keyof GroupForm]) => {
    if (Array.isArray(value)) return value.length === 0 ? t("all") : words(value);
    return typeof value === "string" ? (WORDS[value] ? word(value) : value.trim().replaceAll("\n", ", ")) : "";
  };
  return [
    ...differing(
      LABELS.map(([field, key]) => ({ label: t(key), before: text(before[field]), after: text(after[field]) })),
    ),
    ...idleChanges(before.idle, after.idle),
  ];
}
