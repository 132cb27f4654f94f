import { useSyncExternalStore } from "react";

/** A terminal that is open in the console: its shell lives as long as it is in the list. */
export interface OpenTerminal {
  /** Path of its document: one for each shell. */
  path: string;
  session: string;
  kernel: string;
  /** Counts the terminals of the kernel from 1. */
  number: number;
}

/** A shell takes a stream of the manager: so many of one page are enough. */
export const MAX_TERMINALS = 12;

let open: readonly OpenTerminal[] = [];
/** Where a terminal is to be seen now; those without a place wait unseen. */
const places = new Map<string, HTMLElement>();
const listeners = new Set<() => void>();
/** Tells the shell of the console to load what draws them. */
let wanted: (() => void) | undefined;

function changed(): void {
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function whenTerminalsWanted(load: () => void): void {
  wanted = load;
  if (open.length > 0) load();
}

export function useTerminals(): readonly OpenTerminal[] {
  return useSyncExternalStore(subscribe, () => open);
}

export function usePlace(path: string): HTMLElement | undefined {
  return useSyncExternalStore(subscribe, () => places.get(path));
}

/** Opens another terminal of a kernel; returns the one that was opened. */
export function openTerminal(session: string, kernel: string): OpenTerminal {
  const numbers = new Set(
    open.filter((each) => each.session === session && each.kernel === kernel).map((each) => each.number),
  );
  let number = 1;
  while (numbers.has(number)) number += 1;
  const path = `/terminal/${session}/${encodeURIComponent(kernel)}${number > 1 ? `?shell=${number}` : ""}`;
  const made = { path, session, kernel, number };
  open = [...open, made];
  wanted?.();
  changed();
  return made;
}

export function closeTerminals(which: (terminal: OpenTerminal) => boolean): void {
  if (!open.some(which)) return;
  open = open.filter((each) => !which(each));
  changed();
}

/** Has a terminal seen at an element until the returned function is called. */
export function showAt(path: string, element: HTMLElement): () => void {
  places.set(path, element);
  changed();
  return () => {
    if (places.get(path) === element) places.delete(path);
    changed();
  };
}
