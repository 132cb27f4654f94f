import { useState } from "react";
import { Link } from "react-router";
import { sessions as api } from "../api/client";
import { type Problem, problemOf } from "../api/problem";
import { SessionState } from "../gen/retinue/manager/v1/session_pb";
import { type ExplainSessionResponse, ReasonTier } from "../gen/retinue/manager/v1/session_service_pb";
import { asked, clusterTag } from "../live/state";
import { Dialog, Table, Trouble } from "../parts/basics";
import { useNow, useSessions } from "../parts/store";
import { amounts, between, moment } from "../text/format";
import { t } from "../text/language";

/** What waits, by resource group and priority, with the reason of each. */
export default function Queue() {
  const now = useNow();
  const waiting = useSessions().filter((session) => session.state === SessionState.PENDING);
  const groups = Map.groupBy(waiting, (session) => session.spec?.resourceGroup || "default");
  const [explained, setExplained] = useState<{ name: string; answer?: ExplainSessionResponse; problem?: Problem }>();
  const explain = async (session: string, name: string) => {
    setExplained({ name });
    try {
      setExplained({ name, answer: await api.explainSession({ session }) });
    } catch (error) {
      setExplained({ name, problem: problemOf(error) });
    }
  };
  return (
    <>
      <h1>{t("queue")}</h1>
      {waiting.length === 0 && <p className="note">{t("noSessions")}</p>}
      {[...groups].map(([group, sessions]) => (
        <section key={group}>
          <h2>
            {group} · {sessions.length.toLocaleString()}
          </h2>
          <Table
            label={group}
            head={[t("name"), t("owner"), t("priority"), t("where"), t("use"), t("age"), t("why"), t("explain")]}
            rows={sessions
              .toSorted((one, other) => (other.spec?.priority ?? 10) - (one.spec?.priority ?? 10))
              .slice(0, 500)
              .map((session) => ({
                key: session.id,
                cells: [
                  <Link key="name" to={`/sessions/${session.id}`}>
                    {session.spec?.name}
                  </Link>,
                  session.owner,
                  String(session.spec?.priority ?? 10),
                  clusterTag(session),
                  amounts(asked(session)),
                  session.createTime ? between(session.createTime, undefined, now) : "",
                  `${session.reason} ${session.message}`,
                  <button
                    key="explain"
                    type="button"
                    onClick={() => void explain(session.id, session.spec?.name ?? session.id)}
                  >
                    {t("explain")}
                    <span className="hidden"> {session.spec?.name}</span>
                  </button>,
                ],
              }))}
          />
        </section>
      ))}
      {explained && (
        <Dialog title={explained.name} onClose={() => setExplained(undefined)}>
          <Trouble problem={explained.problem} />
          {explained.answer ? <Explained answer={explained.answer} /> : !explained.problem && <p>{t("loading")}</p>}
          <form method="dialog">
            <button type="submit">{t("close")}</button>
          </form>
        </Dialog>
      )}
    </>
  );
}

function Explained({ answer }: { answer: ExplainSessionResponse }) {
  return (
    <>
      <p>
        <code>{answer.reason}</code> {answer.message}
      </p>
      <dl>
        <dt>{t("tier")}</dt>
        <dd>{ReasonTier[answer.tier]?.toLowerCase()}</dd>
        {answer.queuePosition > 0 && (
          <>
            <dt>{t("place")}</dt>
            <dd>
              {answer.queuePosition} / {answer.queueLength}
            </dd>
          </>
        )}
        {answer.estimatedStartTime && (
          <>
            <dt>{t("start")}</dt>
            <dd>≤ {moment(answer.estimatedStartTime)}</dd>
          </>
        )}
      </dl>
      <ul>
        {answer.shortfalls.map((short) => (
          <li key={short.hostname + short.slot}>
            {short.hostname} {short.slot}: {short.requested}; {short.bestAgent}: {short.free}
          </li>
        ))}
        {answer.agents.map((count) => (
          <li key={count.cause}>
            {count.number} × {count.cause}
          </li>
        ))}
      </ul>
      {answer.wouldStartWith.length > 0 && (
        <p>
          {t("wouldStartWith")}:{" "}
          {answer.wouldStartWith.map((change) => (
            <code key={change}>{change} </code>
          ))}
        </p>
      )}
    </>
  );
}
