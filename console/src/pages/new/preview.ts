import { useEffect, useState } from "react";
import { sessions } from "../../api/client";
import { type Problem, problemOf } from "../../api/problem";
import type { SessionSpec } from "../../gen/retinue/manager/v1/session_pb";
import type { PlacementPreview } from "../../gen/retinue/manager/v1/session_service_pb";

const PREVIEW_MS = 300;

export interface Preview {
  /** What would happen to the newest spec that was answered. */
  outcome: PlacementPreview | undefined;
  /** Why it would be refused. */
  problem: Problem | undefined;
  /** Whether the answer is for what the form says now. */
  current: boolean;
}

/** Asks what would happen whenever the spec has changed and rests; the last answer wins, and stays until the next. */
export function usePreview(spec: SessionSpec | undefined): Preview {
  const [answered, setAnswered] = useState<{ spec: SessionSpec; outcome?: PlacementPreview; problem?: Problem }>();
  useEffect(() => {
    if (spec === undefined) return;
    const stopping = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const answer = await sessions.createSession({ spec, validateOnly: true }, { signal: stopping.signal });
        if (!stopping.signal.aborted) setAnswered({ spec, outcome: answer.preview });
      } catch (error) {
        if (!stopping.signal.aborted) setAnswered({ spec, problem: problemOf(error) });
      }
    }, PREVIEW_MS);
    return () => {
      clearTimeout(timer);
      stopping.abort();
    };
  }, [spec]);
  return {
    outcome: answered?.outcome,
    problem: answered?.problem,
    current: spec !== undefined && answered?.spec === spec,
  };
}
