import { useSyncExternalStore } from "react";

// As Tailwind's `max-md`.
const NARROW = matchMedia("(width < 48rem)");

function subscribe(listener: () => void): () => void {
  NARROW.addEventListener("change", listener);
  return () => NARROW.removeEventListener("change", listener);
}

/** Whether the window is one of a telephone, for what styles alone cannot change. */
export function useNarrow(): boolean {
  return useSyncExternalStore(subscribe, () => NARROW.matches);
}
