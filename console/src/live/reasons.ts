import type { Session } from "../gen/retinue/manager/v1/session_pb";
import { en } from "../text/en";
import { type Key, language, t } from "../text/language";
import { hasEnded } from "./reduce";
import { pulled } from "./state";

/** Longest text of one line; the whole of it is in the title. */
const LONGEST = 160;

/** The words for a reason of the contract; for one that this page does not know, its name as words. */
export function reasonWords(reason: string): string {
  const key = `reason_${reason}`;
  if (Object.hasOwn(en, key)) return t(key as Key);
  const words = reason.toLowerCase().replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The first line of a message, with a capital unless it begins with a name, and no longer than a row can hold. */
export function firstLine(message: string): string {
  const [line = ""] = message.trim().split("\n", 1);
  const short = line.length > LONGEST ? `${line.slice(0, LONGEST - 1).trimEnd()}…` : line;
  return /^[a-z]+\b(?![-.\d])/.test(short) ? short.charAt(0).toUpperCase() + short.slice(1) : short;
}

export interface Why {
  /** One line for people. */
  text: string;
  /** The contract's name of the reason, and the server's whole message. */
  title: string;
}

/** Why a session waits or has ended, or what it does meanwhile. */
export function whyOf(session: Session): Why {
  const percent = pulled(session);
  if (percent !== undefined) return { text: t("pulling", { percent }), title: session.message };
  const { reason, message } = session;
  const title = [reason, message].filter(Boolean).join(": ");
  // The server speaks English: who reads another language has the whole message in the title.
  const inWords = message !== "" && (language() === "en" || reason === "");
  return { text: inWords ? firstLine(message) : reason === "" ? "" : reasonWords(reason), title };
}

/** Whether a session waits for something that time alone does not give. */
export function waitsInVain(session: Session): boolean {
  return !hasEnded(session) && VAIN.has(session.reason);
}

const VAIN: ReadonlySet<string> = new Set([
  "ARCHITECTURE_MISSING",
  "FEATURE_MISSING",
  "EXCEEDS_LARGEST_AGENT",
  "EXCEEDS_CHOSEN_AGENTS",
  "EXCEEDS_GROUP",
  "ISOLATION_NOT_ALLOWED",
]);
