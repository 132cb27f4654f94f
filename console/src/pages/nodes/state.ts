import type { Tone } from "../../design/badge";
import {
  type Agent,
  type AgentConditionType,
  AgentState,
  RouterState,
} from "../../gen/retinue/manager/v1/fleet_service_pb";
import { KernelState, type Session, SessionState, SessionType } from "../../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "../../live/reduce";
import type { Key } from "../../text/administration";
import { amount, COMMON_SLOTS } from "../../text/format";

export interface Mark {
  key: Key;
  tone: Tone;
}

const STATES: Partial<Record<AgentState, Mark>> = {
  [AgentState.JOINING]: { key: "nodeJoining", tone: "busy" },
  [AgentState.ALIVE]: { key: "nodeReady", tone: "good" },
  [AgentState.SUSPECT]: { key: "nodeLate", tone: "warn" },
  [AgentState.LOST]: { key: "nodeLost", tone: "bad" },
};

const ROUTER_STATES: Partial<Record<RouterState, Mark>> = {
  [RouterState.JOINING]: { key: "nodeJoining", tone: "busy" },
  [RouterState.ALIVE]: { key: "nodeReady", tone: "good" },
  [RouterState.LOST]: { key: "nodeLost", tone: "bad" },
  [RouterState.REVOKED]: { key: "nodeRevoked", tone: "neutral" },
};

const UNKNOWN: Mark = { key: "nodeUnknown", tone: "neutral" };

export function agentMark(state: AgentState): Mark {
  return STATES[state] ?? UNKNOWN;
}

export function routerMark(state: RouterState): Mark {
  return ROUTER_STATES[state] ?? UNKNOWN;
}

/** Whether someone should look at it: it is not heard, or something is wrong with it. */
export function needsAttention(agent: Agent): boolean {
  return agent.state !== AgentState.ALIVE || agent.conditions.length > 0;
}

export function hasCondition(agent: Agent, type: AgentConditionType): boolean {
  return agent.conditions.some((condition) => condition.type === type);
}

/** Slots of these agents: processors, memory and disk first. */
export function slotsOf(agents: readonly Agent[]): string[] {
  const all = new Set(agents.flatMap((agent) => Object.keys(agent.capacity)));
  const common = COMMON_SLOTS.filter((slot) => all.has(slot));
  return [...common, ...[...all].filter((slot) => !COMMON_SLOTS.includes(slot)).sort()];
}

export interface Use {
  used: number;
  all: number;
}

/** What is used of a slot of one or many agents. */
export function usageOf(agents: readonly Agent[], slot: string): Use {
  let [used, all] = [0, 0];
  for (const agent of agents) {
    all += amount(agent.capacity[slot] ?? "0");
    used += amount(agent.occupied[slot] ?? "0");
  }
  return { used, all };
}

/** One of five steps from nothing to all; -1 where there is nothing to use. */
export function step({ used, all }: Use): number {
  if (!(all > 0)) return -1;
  const share = used / all;
  if (share <= 0) return 0;
  if (share >= 1) return 5;
  return share < 0.25 ? 1 : share < 0.5 ? 2 : share < 0.75 ? 3 : 4;
}

/** Sessions with a kernel on an agent that has not ended. */
export function sessionsOn(sessions: readonly Session[], agent: string): Session[] {
  return sessions.filter(
    (session) =>
      !hasEnded(session) &&
      session.kernels.some((kernel) => kernel.agent === agent && kernel.state !== KernelState.TERMINATED),
  );
}

/** What becomes of a session on an agent that is drained. */
export type Fate = "fateStays" | "fateEndsNow" | "fateReplaced" | "fateRequeued" | "fateEvicted";

const STARTING: ReadonlySet<SessionState> = new Set([SessionState.SCHEDULED, SessionState.PREPARING]);

/** As DrainAgent says. Without a deadline nothing is evicted. */
export function fate(session: Session, keepSystem: boolean, deadline: boolean): Fate {
  if (session.spec?.type === SessionType.INFERENCE) return "fateReplaced";
  if (session.spec?.type === SessionType.SYSTEM && !keepSystem) return "fateEndsNow";
  if (!deadline) return "fateStays";
  return session.spec?.retry !== undefined || STARTING.has(session.state) ? "fateRequeued" : "fateEvicted";
}
