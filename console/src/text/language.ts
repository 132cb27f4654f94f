import { en, type Key } from "./en";

export type Language = "en" | "ko";
export type { Key };

export type Values = Record<string, string | number | bigint>;

const SETTING = "language";

let current: Language | undefined;

/** The language that was chosen, else the browser's own; pages of others are English. */
export function language(): Language {
  if (current === undefined) {
    const chosen = globalThis.localStorage?.getItem(SETTING) ?? navigator.language;
    current = chosen.startsWith("ko") ? "ko" : "en";
  }
  return current;
}

/** Says to the browser which language the document is in. */
export function markDocument(): void {
  document.documentElement.lang = language();
}

export function chooseLanguage(chosen: Language): void {
  localStorage.setItem(SETTING, chosen);
  current = chosen;
  markDocument();
}

// Whoever reads English loads no Korean; another language loads the page again.
const words: Record<Key, string> = language() === "ko" ? (await import("./ko")).ko : en;

/** Puts values in their places in words. */
export function fill(text: string, values: Values): string {
  return text.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = values[name];
    return typeof value === "string" ? value : value === undefined ? "" : value.toLocaleString(language());
  });
}

/** Returns the words of a key with values in their places. */
export function t(key: Key, values: Values = {}): string {
  return fill(words[key], values);
}
