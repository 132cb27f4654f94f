import { Code } from "@connectrpc/connect";
import { DoorOpen } from "lucide-react";
import { useContext, useRef, useState } from "react";
import { Link } from "react-router";
import { sessions } from "../../api/client";
import { type Problem, problemOf } from "../../api/problem";
import { Card } from "../../design/card";
import { Switch } from "../../design/fields";
import { Empty } from "../../design/states";
import { Table } from "../../design/table";
import type { SessionEvent } from "../../gen/retinue/manager/v1/session_pb";
import { eventWords } from "../../live/events";
import { useStream } from "../../live/stream";
import { Trouble } from "../../parts/basics";
import { StoreContext, useStatus } from "../../parts/store";
import { t } from "../../text/administration";
import { moment } from "../../text/format";

const MAX_EVENTS = 500;
/** So far back the page begins; all of the journal is `retinue watch`'s to read. */
const BACK = 2000n;

/** Who entered which kernel, and what became of sessions: the journal, newest first. */
export function Journal() {
  const store = useContext(StoreContext);
  const status = useStatus();
  const kept = useRef<SessionEvent[]>([]);
  const [, setTurn] = useState(0);
  const [problem, setProblem] = useState<Problem>();
  const [entered, setEntered] = useState(true);
  const ready = status.state === "live";
  useStream(
    `audit ${ready}`,
    async (signal, arrived) => {
      if (!ready) return;
      const newest = store.status.revision;
      const first = kept.current[0]?.revision ?? (newest > BACK ? newest - BACK : 0n);
      let after: { revision: bigint } | undefined = { revision: first };
      for (;;) {
        try {
          for await (const response of sessions.watchSessions({ after }, { signal })) {
            arrived();
            kept.current = [...response.events.toReversed(), ...kept.current].slice(0, MAX_EVENTS * 4);
            if (response.events.length > 0) setTurn((turn) => turn + 1);
          }
          return;
        } catch (error) {
          if (problemOf(error).code !== Code.OutOfRange || after === undefined) throw error;
          after = undefined;
        }
      }
    },
    setProblem,
  );
  const events = kept.current
    .filter((event) => !entered || event.change.case === "kernelAccessed")
    .slice(0, MAX_EVENTS);
  return (
    <>
      <Switch label={t("accessOnly")} checked={entered} onChange={setEntered} />
      <Trouble problem={problem} />
      <Card flush>
        <Table
          label={t("sessions")}
          numeric={["#"]}
          empty={<Empty icon={<DoorOpen size={32} aria-hidden="true" />} title={t("noAccess")} />}
          head={["#", t("time"), t("sessions"), t("event"), t("why")]}
          rows={events.map((event) => ({
            key: String(event.revision),
            cells: [
              String(event.revision),
              <span key="time" className="whitespace-nowrap tabular-nums">
                {moment(event.createTime)}
              </span>,
              <Link key="session" to={`/sessions/${event.sessionId}/events`} className="text-accent">
                {store.get(event.sessionId)?.spec?.name || event.sessionId.slice(0, 8)}
              </Link>,
              ...eventWords(event),
            ],
          }))}
        />
      </Card>
    </>
  );
}
