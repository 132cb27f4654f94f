import { createContext, useContext, useEffect, useState, useSyncExternalStore } from "react";
import { type Problem, problemOf } from "../api/problem";
import type { Session } from "../gen/retinue/manager/v1/session_pb";
import { SessionStore, type Status } from "../live/store";

export const StoreContext = createContext<SessionStore>(new SessionStore());

export function useSessions(): readonly Session[] {
  const store = useContext(StoreContext);
  return useSyncExternalStore(store.subscribe, store.all);
}

export function useSession(id: string): Session | undefined {
  const store = useContext(StoreContext);
  return useSyncExternalStore(store.subscribe, () => store.get(id));
}

export function useStatus(): Status {
  const store = useContext(StoreContext);
  return useSyncExternalStore(store.subscribe, store.currentStatus);
}

/** The time, again every second, for what shows how long something lasts. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

export interface Loaded<T> {
  value: T | undefined;
  problem: Problem | undefined;
  reload: () => void;
}

/**
 * Loads something when the page opens, when `key` changes, and every `period` seconds while the page is visible;
 * 0 is once. The last value stays while the next is loaded.
 */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>, period = 0): Loaded<T> {
  const [value, setValue] = useState<{ key: string; value: T }>();
  const [problem, setProblem] = useState<Problem>();
  const [turn, setTurn] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` says when `load` is another one
  useEffect(() => {
    const stopping = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const once = async () => {
      if (document.visibilityState === "visible") {
        try {
          const loaded = await load(stopping.signal);
          if (stopping.signal.aborted) return;
          setValue({ key, value: loaded });
          setProblem(undefined);
        } catch (error) {
          if (stopping.signal.aborted) return;
          setProblem(problemOf(error));
        }
      }
      if (period > 0) timer = setTimeout(() => void once(), period * 1000);
    };
    void once();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [key, period, turn]);
  return {
    value: value?.key === key ? value.value : undefined,
    problem,
    reload: () => setTurn((count) => count + 1),
  };
}
