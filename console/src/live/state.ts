import {
  ClusterMode,
  KernelState,
  type Session,
  SessionResult,
  SessionState,
  SessionType,
} from "../gen/retinue/manager/v1/session_pb";
import { t } from "../text/language";

export type Look = "waiting" | "starting" | "running" | "ending" | "success" | "failure" | "ended";

/** How a state is shown: an icon, a colour by `look`, and the word of the contract. Never by colour alone. */
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
  return { look, icon: ICONS[look], word: word.charAt(0) + word.slice(1).toLowerCase().replaceAll("_", " ") };
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

/** The tag of a session: how many kernels it has, on one node or many. */
export function clusterTag(session: Session): string {
  const key = session.spec?.clusterMode === ClusterMode.MULTI_NODE ? "multi" : "single";
  return t(key, { size: session.kernels.length || session.spec?.clusterSize || 1 });
}

export function agentsOf(session: Session): string[] {
  return [...new Set(session.kernels.map((kernel) => kernel.agent).filter((agent) => agent !== ""))];
}

export function typeWord(type: SessionType): string {
  return (SessionType[type] ?? String(type)).toLowerCase();
}

export function asked(session: Session): Record<string, string> {
  return session.kernels[0]?.slots ?? session.spec?.kernel?.slots ?? {};
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
