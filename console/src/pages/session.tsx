import { lazy, Suspense, useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { sessions as api } from "../api/client";
import { type Problem, problemOf } from "../api/problem";
import { type Session, SessionState, SessionType } from "../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "../live/reduce";
import { clusterTag, pulled, shownState } from "../live/state";
import { Conditions, StateMark, Tabs, Trouble } from "../parts/basics";
import { useLoaded, useSession, useStatus } from "../parts/store";
import { type Key, t } from "../text/language";
import { EndDialog } from "./sessions";

const Overview = lazy(() => import("./session/overview"));
const Logs = lazy(() => import("./session/logs"));
const Terminals = lazy(() => import("./session/terminals"));
const Files = lazy(() => import("./session/files"));
const Apps = lazy(() => import("./session/apps"));
const Code = lazy(() => import("./session/code"));
const Graph = lazy(() => import("./session/graph"));
const Events = lazy(() => import("./session/events"));
const Spec = lazy(() => import("./session/spec"));

const PARTS = {
  overview: Overview,
  logs: Logs,
  terminal: Terminals,
  files: Files,
  apps: Apps,
  code: Code,
  graph: Graph,
  events: Events,
  spec: Spec,
} as const;
type Part = keyof typeof PARTS;
const ORDER: readonly Part[] = ["overview", "logs", "terminal", "files", "apps", "code", "graph", "events", "spec"];

/** One session, live from the list; one that is not in the list is asked for by itself. */
export default function SessionPage() {
  const { id = "", tab } = useParams();
  const live = useSession(id);
  const status = useStatus();
  const asked = useLoaded(`session ${id} ${live === undefined && status.state === "live"}`, async (signal) => {
    if (live !== undefined || status.state !== "live") return undefined;
    return (await api.getSession({ session: id }, { signal })).session;
  });
  const session = live ?? asked.value;
  if (session === undefined) {
    return asked.problem ? <Trouble problem={asked.problem} /> : <p role="status">{t("loading")}</p>;
  }
  const part = ORDER.find((known) => known === tab) ?? "overview";
  return <Known session={session} part={part} />;
}

function Known({ session, part }: { session: Session; part: Part }) {
  const navigate = useNavigate();
  const status = useStatus();
  const [ending, setEnding] = useState(false);
  const [notice, setNotice] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const Shown = PARTS[part];
  const ended = hasEnded(session);
  const fetched = pulled(session);
  const parts = ORDER.filter((each) => each !== "code" || session.spec?.type === SessionType.INTERACTIVE);
  return (
    <>
      <div className="bar-top">
        <h1>{session.spec?.name}</h1>
        <span className="tag" title={t("number")}>
          {String(session.number)}
        </span>
        <StateMark shown={shownState(session)} />
        <span className="tag">{clusterTag(session)}</span>
        <span>{session.owner}</span>
        <span className="reason">{fetched === undefined ? session.reason : t("pulling", { percent: fetched })}</span>
        <span className="grow" />
        {session.state === SessionState.RUNNING && (
          <>
            <Link className="button" to={`/sessions/${session.id}/terminal`}>
              {t("terminal")}
            </Link>
            <button
              type="button"
              onClick={async () => {
                try {
                  await api.extendSession({ session: session.id });
                  setProblem(undefined);
                  setNotice(t("extended"));
                } catch (error) {
                  setProblem(problemOf(error));
                }
              }}
            >
              {t("extend")}
            </button>
          </>
        )}
        <button type="button" disabled={ended || status.state !== "live"} onClick={() => setEnding(true)}>
          {t("end")}…
        </button>
      </div>
      {session.spec?.description && <p>{session.spec.description}</p>}
      {notice && <p role="status">{notice}</p>}
      <Trouble problem={problem} />
      {session.message && <p className="note">{session.message}</p>}
      <Conditions conditions={session.conditions} />
      <Tabs
        label={t("sessions")}
        panel="part"
        items={parts.map((each) => ({ id: each, label: t(each satisfies Key) }))}
        selected={part}
        onSelect={(each) => navigate(`/sessions/${session.id}/${each}`, { replace: true })}
      />
      <div id="part" role="tabpanel" aria-labelledby={`tab-${part}`}>
        <Suspense fallback={<p role="status">{t("loading")}</p>}>
          <Shown session={session} />
        </Suspense>
      </div>
      {ending && <EndDialog sessions={[session]} onClose={() => setEnding(false)} />}
    </>
  );
}
