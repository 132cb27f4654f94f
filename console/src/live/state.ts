import {
  ClusterMode,
  KernelState,
  type Session,
  SessionResult,
  SessionState,
  SessionType,
} from "../gen/retinue/manager/v1/session_pb";
import { en } from "../text/en";
import { amount } from "../text/format";
import { type Key, t } from "../text/language";

export type Look = "waiting" | "starting" | "running" | "ending" | "success" | "failure" | "ended";

/** How a state is shown: an icon, a colour by `look`, and a word. Never by colour alone. */
export interface Shown {
  look: Look;
  icon: string;
  word: string;
}

const ICONS: Record<Look, string> = {
  waiting: "◌",
  starting: "◐",
  running: "●",
  ending: "◑",
  success: "✓",
  failure: "✕",
  ended: "○",
};

const LOOKS: Partial<Record<SessionState, Look>> = {
  [SessionState.PENDING]: "waiting",
  [SessionState.SCHEDULED]: "starting",
  [SessionState.PREPARING]: "starting",
  [SessionState.RUNNING]: "running",
  [SessionState.TERMINATING]: "ending",
};

const KERNEL_LOOKS: Partial<Record<KernelState, Look>> = {
  [KernelState.PENDING]: "waiting",
  [KernelState.SCHEDULED]: "starting",
  [KernelState.PULLING]: "starting",
  [KernelState.CREATING]: "starting",
  [KernelState.RUNNING]: "running",
  [KernelState.TERMINATING]: "ending",
};

function made(look: Look, word: string): Shown {
  return { look, icon: ICONS[look], word: Object.hasOwn(en, `state_${word}`) ? t(`state_${word}` as Key) : word };
}

export function shownState(session: Session): Shown {
  const look = LOOKS[session.state];
  // The server may have states that this page does not know.
  if (look !== undefined) return made(look, SessionState[session.state] ?? String(session.state));
  if (session.result === SessionResult.SUCCESS) return made("success", "SUCCESS");
  if (session.result === SessionResult.FAILED) return made("failure", "FAILED");
  return made("ended", SessionState[session.state] ?? String(session.state));
}

export function shownKernel(state: KernelState): Shown {
  return made(KERNEL_LOOKS[state] ?? "ended", KernelState[state] ?? String(state));
}

/**
 * The tag of a session: how many kernels it has, and whether they are on one node or on many. Before all of them have a
 * place, what was asked for counts, unless two nodes are known already.
 */
export function clusterTag(session: Session): string {
  return t(onManyNodes(session) ? "multi" : "single", { size: sizeOf(session) });
}

/** What was asked for, where the kernels are placed otherwise; else empty. */
export function askedOtherwise(session: Session): string {
  const asksMany = session.spec?.clusterMode === ClusterMode.MULTI_NODE;
  // One kernel is on one node, whatever was asked.
  if (sizeOf(session) < 2 || asksMany === onManyNodes(session)) return "";
  return t(asksMany ? "askedMulti" : "askedSingle");
}

export function sizeOf(session: Session): number {
  return session.kernels.length || session.spec?.clusterSize || 1;
}

function onManyNodes(session: Session): boolean {
  const nodes = agentsOf(session).length;
  if (nodes > 1) return true;
  const placed = nodes === 1 && session.kernels.every((kernel) => kernel.agent !== "");
  return !placed && session.spec?.clusterMode === ClusterMode.MULTI_NODE;
}

export function agentsOf(session: Session): string[] {
  return [...new Set(session.kernels.map((kernel) => kernel.agent).filter((agent) => agent !== ""))];
}

export function typeWord(type: SessionType): string {
  return (SessionType[type] ?? String(type)).toLowerCase();
}

/** The type as a word for people; that of a newer server as it says it. */
export function typeShown(session: Session): string {
  const word = typeWord(session.spec?.type ?? SessionType.UNSPECIFIED);
  return Object.hasOwn(en, word) ? t(word as Key) : word;
}

export function asked(session: Session): Record<string, string> {
  return session.kernels[0]?.slots ?? session.spec?.kernel?.slots ?? {};
}

/** What all kernels of a session ask for together. */
export function total(session: Session): Record<string, string> {
  const sums: Record<string, number> = {};
  const each = session.kernels.length > 0 ? session.kernels.map(({ slots }) => slots) : [asked(session)];
  for (const slots of each)
    for (const [slot, value] of Object.entries(slots)) sums[slot] = (sums[slot] ?? 0) + amount(value);
  return Object.fromEntries(Object.entries(sums).map(([slot, sum]) => [slot, String(sum)]));
}

/** Percent of the image that the slowest kernel has; undefined when none fetches one. */
export function pulled(session: Session): number | undefined {
  const shares = session.kernels
    .filter(
      (kernel) => kernel.state === KernelState.PULLING && kernel.pull !== undefined && kernel.pull.totalBytes > 0n,
    )
    .map((kernel) => (100 * Number(kernel.pull?.bytes)) / Number(kernel.pull?.totalBytes));
  return shares.length > 0 ? Math.floor(Math.min(...shares)) : undefined;
}
