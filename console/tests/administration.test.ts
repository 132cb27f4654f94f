import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { QuotaKind, QuotaSchema } from "../src/gen/retinue/manager/v1/account_service_pb";
import { AgentSchema, EgressPolicy, ResourceGroupSchema } from "../src/gen/retinue/manager/v1/fleet_service_pb";
import { IdleJoin, IdlePolicySchema, UtilizationOperator } from "../src/gen/retinue/manager/v1/idle_pb";
import { PreemptionMode } from "../src/gen/retinue/manager/v1/scheduling_policy_pb";
import {
  KernelState,
  RetryPolicySchema,
  SessionSchema,
  SessionSpecSchema,
  SessionState,
  SessionType,
} from "../src/gen/retinue/manager/v1/session_pb";
import { filterOf, shortMethod } from "../src/pages/audit/filter";
import { changedPaths, formOf, groupChanges, groupOf, rootLine, rootOf } from "../src/pages/groups/form";
import { idleChanges, idleFormOf, idlePolicyOf } from "../src/pages/groups/idle";
import { fate, sessionsOn, slotsOf, step, usageOf } from "../src/pages/nodes/state";
import { limitChanges, limitsOf, NO_LIMITS, quotaOf } from "../src/pages/quotas/limits";
import { durationOf, durationSeconds, durationText } from "../src/text/duration";

it.each([
  [604800, "7d"],
  [5400, "1h 30m"],
  [90, "1m 30s"],
  [0.5, "0.5s"],
  [0, "0s"],
])("writes and reads %d seconds as %s", (seconds, text) => {
  expect(durationText(durationOf(seconds))).toBe(text);
  expect(durationSeconds(text)).toBe(seconds);
});

it("reads nothing as nothing, and no other words", () => {
  expect(durationSeconds("  ")).toBeUndefined();
  for (const text of ["soon", "5", "1h later", "-1h"]) expect(durationSeconds(text)).toBeNaN();
});

function session(type: SessionType, state: SessionState, retry: boolean) {
  const spec = create(SessionSpecSchema, { type, ...(retry && { retry: create(RetryPolicySchema) }) });
  return create(SessionSchema, { id: "s", state, spec });
}

it.each([
  [SessionType.INTERACTIVE, SessionState.RUNNING, false, false, false, "fateStays"],
  [SessionType.INTERACTIVE, SessionState.RUNNING, false, false, true, "fateEvicted"],
  [SessionType.BATCH, SessionState.RUNNING, true, false, true, "fateRequeued"],
  [SessionType.BATCH, SessionState.PREPARING, false, false, true, "fateRequeued"],
  [SessionType.SYSTEM, SessionState.RUNNING, false, false, false, "fateEndsNow"],
  [SessionType.SYSTEM, SessionState.RUNNING, false, true, false, "fateStays"],
  [SessionType.SYSTEM, SessionState.RUNNING, false, true, true, "fateEvicted"],
  [SessionType.INFERENCE, SessionState.RUNNING, false, false, true, "fateReplaced"],
] as const)("says what a drain does to type %s in state %s", (type, state, retry, keepSystem, deadline, expected) => {
  expect(fate(session(type, state, retry), keepSystem, deadline)).toBe(expected);
});

it("finds sessions on a node by kernels that live there", () => {
  const on = (id: string, state: SessionState, agent: string, kernel: KernelState) =>
    create(SessionSchema, { id, state, kernels: [{ agent, state: kernel }] });
  const all = [
    on("runs", SessionState.RUNNING, "n1", KernelState.RUNNING),
    on("elsewhere", SessionState.RUNNING, "n2", KernelState.RUNNING),
    on("over", SessionState.TERMINATED, "n1", KernelState.TERMINATED),
    on("left", SessionState.RUNNING, "n1", KernelState.TERMINATED),
  ];
  expect(sessionsOn(all, "n1").map(({ id }) => id)).toEqual(["runs"]);
});

it("adds up slots of nodes, common ones first", () => {
  const nodes = [
    create(AgentSchema, { capacity: { cuda: "2", mem: "1g", cpu: "4" }, occupied: { cpu: "1" } }),
    create(AgentSchema, { capacity: { cpu: "4" }, occupied: { cpu: "4" } }),
  ];
  expect(slotsOf(nodes)).toEqual(["cpu", "mem", "cuda"]);
  expect(usageOf(nodes, "cpu")).toEqual({ used: 5, all: 8 });
  expect([0, 1, 2, 5, 7, 8].map((used) => step({ used, all: 8 }))).toEqual([0, 1, 2, 3, 4, 5]);
  expect(step({ used: 0, all: 0 })).toBe(-1);
});

it("makes a quota of what was typed, and says what changes", () => {
  const before = create(QuotaSchema, {
    kind: QuotaKind.USER,
    name: "mina",
    slots: { cpu: "8", mem: "4g" },
    maxSessions: 3,
    etag: "e",
  });
  const typed = { ...limitsOf(before), slots: { cpu: "16", mem: " " }, sessions: "", pending: "0" };
  const after = quotaOf(QuotaKind.USER, "mina", typed, before.etag);
  expect(after.slots).toEqual({ cpu: "16" });
  expect(after.maxSessions).toBeUndefined();
  expect(after.maxPendingSessions).toBe(0);
  expect(after.etag).toBe("e");
  expect(limitChanges(limitsOf(before), typed)).toEqual([
    { label: "cpu", before: "8", after: "16" },
    { label: "mem", before: "4g", after: "" },
    { label: "Sessions that are placed", before: "3", after: "" },
    { label: "Sessions that wait", before: "", after: "0" },
  ]);
  expect(() => quotaOf(QuotaKind.USER, "mina", { ...NO_LIMITS, sessions: "many" }, "")).toThrow("whole number");
});

const FULL = create(ResourceGroupSchema, {
  name: "gpu",
  etag: "e",
  egress: EgressPolicy.DENY,
  ownerWeights: { mina: 3 },
  startTimeout: durationOf(600),
  maxGrace: durationOf(300),
  imageRegistries: ["docker.io", "*.example"],
  sessionTypes: [SessionType.BATCH],
  massLossPercent: 50,
  massLossAgents: 3,
  massLossWindow: durationOf(300),
  mountRoots: [{ path: "/srv/home/{user}", writable: true, projects: ["a", "b"], owner: { account: true, gid: 7 } }],
  schedulingPolicy: {
    sessionStrategy: {
      strategy: { case: "fairShare", value: { halfLife: durationOf(604800), usageWeights: { cpu: 2 } } },
    },
    agentStrategy: { strategy: { case: "dispersed", value: { slotPriority: ["cuda", "cpu"] } } },
    reservation: { after: durationOf(300) },
    preemption: { mode: PreemptionMode.REQUEUE, order: 2 },
    pendingTimeout: durationOf(86400),
  },
  idlePolicy: {
    interactionTimeout: durationOf(7200),
    utilization: { window: durationOf(3600), thresholds: { cpu: 5 }, operator: UtilizationOperator.ANY },
    join: IdleJoin.ANY,
  },
});

it("gives back a resource group as it was", () => {
  expect(groupOf(formOf(FULL), FULL)).toEqual(FULL);
  const plain = create(ResourceGroupSchema, {
    egress: EgressPolicy.ALLOW,
    schedulingPolicy: {
      sessionStrategy: { strategy: { case: "drf", value: {} } },
      agentStrategy: { strategy: { case: "concentrated", value: {} } },
    },
  });
  expect(groupOf(formOf(plain), undefined)).toEqual(plain);
});

it("keeps the options of an installed strategy for as long as its name stays", () => {
  const group = create(ResourceGroupSchema, {
    egress: EgressPolicy.ALLOW,
    schedulingPolicy: {
      sessionStrategy: { strategy: { case: "custom", value: { name: "lottery", options: { seed: "1" } } } },
      agentStrategy: { strategy: { case: "concentrated", value: {} } },
    },
  });
  expect(groupOf(formOf(group), group)).toEqual(group);
  const other = groupOf({ ...formOf(group), orderName: "auction" }, group);
  expect(other.schedulingPolicy?.sessionStrategy?.strategy.value).toMatchObject({ name: "auction", options: {} });
});

it("sends of a resource group only what changes", () => {
  const before = formOf(FULL);
  const after = { ...before, egress: "allow", pendingTimeout: "", idle: { ...before.idle, interaction: "3h" } };
  expect(changedPaths(before, after)).toEqual(["scheduling_policy.pending_timeout", "egress", "idle_policy"]);
  expect(groupChanges(before, after)).toEqual([
    { label: "Cancelled after a wait of", before: "1d", after: "" },
    { label: "Outside world", before: "not reachable", after: "reachable" },
    { label: "Ends when unused for", before: "2h", after: "3h" },
  ]);
  expect(changedPaths(before, before)).toEqual([]);
});

it("names the field that cannot be read", () => {
  const form = formOf(FULL);
  expect(() => groupOf({ ...form, startTimeout: "soon" }, FULL)).toThrow(
    expect.objectContaining({ field: "resource_group.start_timeout" }),
  );
  expect(() => groupOf({ ...form, weights: "mina" }, FULL)).toThrow(
    expect.objectContaining({ field: "resource_group.owner_weights" }),
  );
  expect(() => rootOf("/srv:rx", 2)).toThrow(expect.objectContaining({ field: "resource_group.mount_roots[2]" }));
});

it.each(["/srv", "/srv:rw", "/srv/{user}:rw,uid=account,gid=7,projects=a+b", "/srv:uid=1000,gid=1000"])(
  "writes the mount root %s as it was read",
  (line) => {
    expect(rootLine(rootOf(line, 0))).toBe(line);
  },
);

it("has no idle policy of nothing, and the same one of what it wrote", () => {
  expect(idlePolicyOf("p", idleFormOf(undefined))).toBeUndefined();
  const policy = create(IdlePolicySchema, { gracePeriod: durationOf(0), maxLifetime: durationOf(604800) });
  expect(idlePolicyOf("p", idleFormOf(policy))).toEqual(policy);
  expect(idleChanges(idleFormOf(undefined), idleFormOf(policy)).map(({ after }) => after)).toEqual(["7d", "0s"]);
});

const NOTHING = { who: "", category: "", method: "", object: "", outcome: "", since: "" };

it("asks the audit with what was chosen", () => {
  expect(filterOf(NOTHING)).toBe("");
  expect(filterOf({ ...NOTHING, who: ' a"b\\ ', method: "CreateUser", outcome: "refused" })).toBe(
    'principal = "a\\"b\\\\" AND method = "CreateUser" AND code != "OK"',
  );
  expect(shortMethod("/retinue.manager.v1.AccountService/CreateUser")).toBe("CreateUser");
  expect(shortMethod("console log-in")).toBe("console log-in");
});
