import { Code } from "@connectrpc/connect";
import { useRef, useState } from "react";
import { sessions } from "../../api/client";
import { type Problem, problemOf } from "../../api/problem";
import type { Session, SessionEvent } from "../../gen/retinue/manager/v1/session_pb";
import { eventWords } from "../../live/events";
import { useStream } from "../../live/stream";
import { Table, Trouble } from "../../parts/basics";
import { moment } from "../../text/format";
import { t } from "../../text/language";

/** All that the journal has of a session, and what comes. */
export default function Events({ session }: { session: Session }) {
  const kept = useRef<SessionEvent[]>([]);
  const [, setTurn] = useState(0);
  const [problem, setProblem] = useState<Problem>();
  useStream(
    `events ${session.id}`,
    async (signal, arrived) => {
      let after: { revision: bigint } | undefined = { revision: kept.current.at(-1)?.revision ?? 0n };
      for (;;) {
        try {
          for await (const response of sessions.watchSessions({ after, sessionId: session.id }, { signal })) {
            arrived();
            kept.current.push(...response.events);
            setTurn((turn) => turn + 1);
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
  return (
    <>
      <Trouble problem={problem} />
      <Table
        label={t("events")}
        head={["#", t("time"), t("event"), t("why")]}
        rows={kept.current.map((event) => ({
          key: String(event.revision),
          cells: [String(event.revision), moment(event.createTime), ...eventWords(event)],
        }))}
      />
    </>
  );
}
