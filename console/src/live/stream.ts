import { useEffect, useRef } from "react";
import { isSignedOut } from "../api/client";
import { type Problem, problemOf } from "../api/problem";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;

/**
 * Reads a stream while the page is open, again and again when it breaks, after a pause that grows.
 * `run` returns when there is nothing more to come, and throws what broke it.
 */
export function useStream(
  key: string,
  run: (signal: AbortSignal, arrived: () => void) => Promise<void>,
  onProblem: (problem: Problem | undefined) => void,
): void {
  const latest = useRef({ run, onProblem });
  latest.current = { run, onProblem };
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` says when it is another stream
  useEffect(() => {
    const stopping = new AbortController();
    const signal = stopping.signal;
    void (async () => {
      for (let pause = FIRST_PAUSE; !signal.aborted; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
        try {
          await latest.current.run(signal, () => {
            pause = FIRST_PAUSE;
            latest.current.onProblem(undefined);
          });
          return;
        } catch (error) {
          if (signal.aborted) return;
          latest.current.onProblem(problemOf(error));
          if (isSignedOut(error)) return;
        }
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    })();
    return () => stopping.abort();
  }, [key]);
}
