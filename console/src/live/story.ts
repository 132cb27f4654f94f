import {
  AccessMethod,
  KernelState,
  type SessionEvent,
  SessionResult,
  SessionState,
} from "../gen/retinue/manager/v1/session_pb";
import { bytes } from "../text/format";
import { type Key, t } from "../text/language";

export type Weight = "step" | "good" | "bad" | "wait" | "access" | "detail";

/** One event as people tell it. */
export interface Sentence {
  words: string;
  /** Why, in the server's words. */
  cause: string;
  /** The same in the words of the contract, for who looks for them. */
  contract: string;
  weight: Weight;
}

const SESSION_STEPS: Partial<Record<SessionState, { key: Key; weight: Weight }>> = {
  [SessionState.PENDING]: { key: "storyQueuedAgain", weight: "wait" },
  [SessionState.SCHEDULED]: { key: "storyPlaced", weight: "step" },
  [SessionState.PREPARING]: { key: "storyPreparing", weight: "step" },
  [SessionState.RUNNING]: { key: "storyRuns", weight: "good" },
  [SessionState.TERMINATING]: { key: "storyEnding", weight: "step" },
  [SessionState.CANCELLED]: { key: "storyCancelled", weight: "bad" },
};

const KERNEL_STEPS: Partial<Record<KernelState, Key>> = {
  [KernelState.PENDING]: "storyKernelWaits",
  [KernelState.SCHEDULED]: "storyKernelPlaced",
  [KernelState.PULLING]: "storyKernelPulls",
  [KernelState.CREATING]: "storyKernelMade",
  [KernelState.RUNNING]: "storyKernelRuns",
  [KernelState.TERMINATING]: "storyKernelStops",
  [KernelState.CANCELLED]: "storyKernelCancelled",
};

const ACCESS: Partial<Record<AccessMethod, Key>> = {
  [AccessMethod.ATTACH]: "storyAttach",
  [AccessMethod.CODE]: "storyCode",
  [AccessMethod.PORT]: "storyPort",
  [AccessMethod.UPLOAD]: "storyUpload",
  [AccessMethod.DOWNLOAD]: "storyDownload",
  [AccessMethod.APP_START]: "storyAppStart",
  [AccessMethod.HTTP]: "storyHttp",
  [AccessMethod.APP_STOP]: "storyAppStop",
  [AccessMethod.SFTP]: "storySftp",
  [AccessMethod.SSH_CERTIFICATE]: "storyCertificate",
  [AccessMethod.SSH_KEYS]: "storyKeys",
};

/** Tells an event as a sentence. What this page does not know has the words of the contract alone. */
export function sentenceOf({ change }: SessionEvent): Sentence {
  switch (change.case) {
    case "created":
      return { words: t("storyCreated", { user: change.value.owner }), cause: "", contract: "created", weight: "step" };
    case "sessionMoved":
      return sessionMove(change.value);
    case "kernelMoved":
      return kernelMove(change.value);
    case "reasonChanged": {
      const { reason, message, conditions } = change.value;
      const noteworthy = conditions.map((condition) => `${condition.type}: ${condition.message}`).join("; ");
      return {
        words: noteworthy !== "" ? t("storyCondition") : t(message === "" ? "storyReasonGone" : "storyReason"),
        cause: noteworthy || message,
        contract: reason,
        weight: "wait",
      };
    }
    case "imagePull": {
      const { hostname, image, agent, progress } = change.value;
      const total = Number(progress?.totalBytes ?? 0n);
      const share = total > 0 ? Math.floor((100 * Number(progress?.bytes ?? 0n)) / total) : 0;
      return {
        words: t("storyPull", { node: agent, image }),
        cause: total > 0 ? t("storyPulled", { percent: share, size: bytes(total) }) : "",
        contract: `${hostname}: PULLING`,
        weight: "detail",
      };
    }
    case "kernelAccessed": {
      const { method, hostname, user, app, port, source, keyFingerprint } = change.value;
      const key = ACCESS[method];
      return {
        words: key ? t(key, { user, name: hostname, what: app || String(port || "") }) : `${user} → ${hostname}`,
        cause: [source && t("storyFrom", { address: source }), keyFingerprint].filter(Boolean).join(" "),
        contract: AccessMethod[method] ?? String(method),
        weight: "access",
      };
    }
    case "sessionUpdated": {
      const { name, priority, hold, user } = change.value;
      return {
        words: t("storyUpdated", { user, name, priority }),
        cause: hold ? t("storyHeld") : "",
        contract: "updated",
        weight: "step",
      };
    }
    default:
      return { words: change.case ?? "", cause: "", contract: change.case ?? "", weight: "detail" };
  }
}

type Move<C> = Extract<SessionEvent["change"], { case: C }> extends { value: infer V } ? V : never;

function sessionMove(move: Move<"sessionMoved">): Sentence {
  const contract = `${SessionState[move.fromState]} → ${SessionState[move.toState]}${move.reason && ` (${move.reason})`}`;
  const step = SESSION_STEPS[move.toState];
  if (step !== undefined) return { words: t(step.key), cause: move.message, contract, weight: step.weight };
  if (move.toState !== SessionState.TERMINATED)
    return { words: contract, cause: move.message, contract, weight: "step" };
  const failed = move.result === SessionResult.FAILED;
  const key: Key = move.result === SessionResult.SUCCESS ? "storySuccess" : failed ? "storyFailed" : "storyEnded";
  const code = move.exitCode === undefined ? "" : ` ${t("storyExit", { code: move.exitCode })}`;
  return {
    words: t(key) + code,
    cause: move.message,
    contract,
    weight: failed ? "bad" : key === "storySuccess" ? "good" : "step",
  };
}

function kernelMove(move: Move<"kernelMoved">): Sentence {
  const contract = `${move.hostname}: ${KernelState[move.fromState]} → ${KernelState[move.toState]}${move.reason && ` (${move.reason})`}`;
  const values = { name: move.hostname, node: move.agent, attempt: move.attempt };
  const key = KERNEL_STEPS[move.toState];
  if (key !== undefined) return { words: t(key, values), cause: "", contract, weight: "detail" };
  if (move.toState !== KernelState.TERMINATED) return { words: contract, cause: "", contract, weight: "detail" };
  const words =
    move.exitCode === undefined
      ? t("storyKernelEnded", values)
      : t("storyKernelExited", { ...values, code: move.exitCode });
  return { words, cause: "", contract, weight: "detail" };
}
