import { Code } from "@connectrpc/connect";
import { useRef, useState } from "react";
import { sessions } from "../../api/client";
import { type Problem, problemOf } from "../../api/problem";
import type { Session, SessionEvent } from "../../gen/retinue/manager/v1/session_pb";
import { useStream } from "../../live/stream";

export interface Journal {
  events: readonly SessionEvent[];
  /** Whether something came, or nothing is there. */
  arrived: boolean;
  problem: Problem | undefined;
}

/** All that the journal has of a session, and what comes. */
export function useJournal(session: Session): Journal {
  const kept = useRef<SessionEvent[]>([]);
  const [arrived, setArrived] = useState(0);
  const [problem, setProblem] = useState<Problem>();
  useStream(
    `events ${session.id}`,
    async (signal, live) => {
      let after: { revision: bigint } | undefined = { revision: kept.current.at(-1)?.revision ?? 0n };
      for (;;) {
        try {
          for await (const response of sessions.watchSessions({ after, sessionId: session.id }, { signal })) {
            live();
            kept.current = [...kept.current, ...response.events];
            setArrived((count) => count + 1);
          }
          return;
        } catch (error) {
          const known = problemOf(error);
          // The oldest events were compacted: what is left is asked for by the word of the server.
          if (known.code !== Code.OutOfRange || after === undefined) throw error;
          after = undefined;
        }
      }
    },
    setProblem,
  );
  return { events: kept.current, arrived: arrived > 0, problem };
}
