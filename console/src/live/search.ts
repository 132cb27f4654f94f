import { type Session, SessionState } from "../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "./reduce";
import { agentsOf, shownState, typeWord } from "./state";

export type Tab = "all" | "running" | "waiting" | "ended";
export const TABS: readonly Tab[] = ["all", "running", "waiting", "ended"];

/** Whether a session is in a tab. */
export function inTab(session: Session, tab: Tab): boolean {
  switch (tab) {
    case "running":
      return !hasEnded(session) && session.state !== SessionState.PENDING;
    case "waiting":
      return session.state === SessionState.PENDING;
    case "ended":
      return hasEnded(session);
    default:
      return true;
  }
}

/**
 * Returns the sessions that match all words of a text. A word is part of the name, the id or the owner, or the number;
 * `field:value` looks in one field, where `*` stands for anything.
 */
export function matching(text: string): (session: Session) => boolean {
  const tests = text.trim().split(/\s+/).filter(Boolean).map(wordTest);
  return (session) => tests.every((test) => test(session));
}

const FIELDS: Record<string, (session: Session) => string[]> = {
  name: (session) => [session.spec?.name ?? ""],
  id: (session) => [session.id],
  number: (session) => [String(session.number)],
  state: (session) => [shownState(session).word.toLowerCase(), SessionState[session.state]?.toLowerCase() ?? ""],
  owner: (session) => [session.owner],
  project: (session) => [session.spec?.project ?? ""],
  group: (session) => [session.spec?.resourceGroup ?? ""],
  type: (session) => [typeWord(session.spec?.type ?? 0)],
  agent: agentsOf,
  reason: (session) => [session.reason.toLowerCase()],
  label: (session) => Object.entries(session.spec?.labels ?? {}).flatMap(([key, value]) => [key, `${key}=${value}`]),
};

function wordTest(word: string): (session: Session) => boolean {
  const colon = word.indexOf(":");
  const read = colon > 0 ? FIELDS[word.slice(0, colon).toLowerCase()] : undefined;
  if (read === undefined) {
    const part = word.toLowerCase();
    return (session) =>
      part === String(session.number) ||
      [session.spec?.name ?? "", session.id, session.owner].some((text) => text.toLowerCase().includes(part));
  }
  const wanted = word.slice(colon + 1).toLowerCase();
  const pattern = new RegExp(`^${wanted.split("*").map(escaped).join(".*")}`);
  return (session) => read(session).some((text) => pattern.test(text.toLowerCase()));
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
}

export type Column = "name" | "state" | "owner" | "age" | "type" | "project" | "group";

/** Returns sessions in the order of a column; `age` is the order in which they came, newest first. */
export function ordered(sessions: readonly Session[], column: Column, descending: boolean): readonly Session[] {
  if (column === "age") return descending ? sessions.toReversed() : sessions;
  const key = (session: Session) =>
    column === "state" ? shownState(session).word : (FIELDS[column]?.(session)[0] ?? "");
  const sign = descending ? -1 : 1;
  return sessions.toSorted((one, other) => sign * key(one).localeCompare(key(other)));
}
