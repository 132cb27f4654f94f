import { administration } from "./en/administration";
import { type Key as CommonKey, t as common, fill, language, type Values } from "./language";

export type Key = CommonKey | keyof typeof administration;

// These are many words, of pages that few open: they come with those pages.
const words: Record<keyof typeof administration, string> =
  language() === "ko" ? (await import("./ko/administration")).administration : administration;

/** As `t` of all pages, and the words of nodes, users, projects, quotas, resource groups and the audit. */
export function t(key: Key, values: Values = {}): string {
  return isOwn(key) ? fill(words[key], values) : common(key, values);
}

function isOwn(key: Key): key is keyof typeof administration {
  return key in words;
}
