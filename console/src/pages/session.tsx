import { CopyPlus, Hash, MoreHorizontal, Pause, Play, RotateCcw, SquareTerminal, Timer } from "lucide-react";
import { Suspense, useState } from "react";
import { useNavigate, useParams } from "react-router";
import { sessions as api } from "../api/client";
import { Badge } from "../design/badge";
import { Button, ButtonLink, IconButton } from "../design/button";
import { ConfirmDialog } from "../design/dialog";
import { Menu, MenuItem, MenuSeparator } from "../design/menu";
import { notify, notifyProblem } from "../design/notify";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { Tabs } from "../design/tabs";
import { type Session, SessionState, SessionType } from "../gen/retinue/manager/v1/session_pb";
import { whyOf } from "../live/reasons";
import { hasEnded } from "../live/reduce";
import { pulled, shownState } from "../live/state";
import { ClusterTag, Conditions, StateMark, Trouble } from "../parts/basics";
import { EndDialog } from "../parts/end_dialog";
import { lazy } from "../parts/lazy";
import { useLoaded, useNow, useSession, useStatus } from "../parts/store";
import { between, moment } from "../text/format";
import { type Key, t } from "../text/language";

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
/** Parts that have the height of the window, and scroll within. */
const FILLING: readonly Part[] = ["logs", "terminal"];

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
    return (
      <Page title={t("session")} crumbs={[{ label: t("sessions"), to: "/sessions" }]}>
        {asked.problem?.reason === "NOT_FOUND" ? (
          <Empty title={t("sessionNotFound")} action={<ButtonLink to="/sessions">{t("allSessions")}</ButtonLink>} />
        ) : asked.problem ? (
          <Trouble problem={asked.problem} retry={asked.reload} />
        ) : (
          <Skeleton lines={6} />
        )}
      </Page>
    );
  }
  const part = ORDER.find((known) => known === tab) ?? "overview";
  return <Known session={session} part={part} />;
}

function Known({ session, part }: { session: Session; part: Part }) {
  const navigate = useNavigate();
  const Shown = PARTS[part];
  const fetched = pulled(session);
  const parts = ORDER.filter((each) => each !== "code" || session.spec?.type === SessionType.INTERACTIVE);
  const fill = FILLING.includes(part);
  // A pending session says at length below why it waits.
  const says = session.state === SessionState.PENDING && part === "overview" ? undefined : whyOf(session);
  return (
    <Page
      title={session.spec?.name}
      crumbs={[{ label: t("sessions"), to: "/sessions" }]}
      fill={fill}
      beside={
        <>
          <StateMark shown={shownState(session)} />
          {fetched !== undefined && <Badge tone="busy">{t("pulling", { percent: fetched })}</Badge>}
          <Badge className="tag" title={t("number")}>
            #{String(session.number)}
          </Badge>
          <ClusterTag session={session} />
        </>
      }
      actions={<Actions session={session} onTerminal={part === "terminal"} />}
      lead={session.spec?.description || <Subtitle session={session} />}
    >
      {says !== undefined && says.text !== "" && fetched === undefined && (
        <p className="rounded-md bg-sunken px-3 py-2 wrap-anywhere" title={says.title}>
          {says.text}
        </p>
      )}
      <Conditions conditions={session.conditions} />
      <Tabs
        label={t("partsOfSession")}
        items={parts.map((each) => ({ id: each, label: t(each satisfies Key) }))}
        selected={part}
        onSelect={(each) => navigate(`/sessions/${session.id}/${each}`, { replace: true })}
        className={fill ? "min-h-0 grow" : ""}
        panelClassName={fill ? "min-h-0 grow" : ""}
      >
        <Suspense fallback={<Skeleton lines={6} className="pt-2" />}>
          <Shown session={session} />
        </Suspense>
      </Tabs>
    </Page>
  );
}

/** Whose it is, and for how long it has been in its state. */
function Subtitle({ session }: { session: Session }) {
  const now = useNow();
  const { createTime, startTime, endTime, owner, spec } = session;
  const since = endTime ?? startTime ?? createTime;
  const key: Key = endTime ? "endedAgo" : startTime ? "startedAgo" : "createdAgo";
  return (
    <span title={moment(since)}>
      {t("ofOwnerIn", { owner, project: spec?.project ?? "", group: spec?.resourceGroup ?? "" })}
      {since && ` · ${t(key, { time: between(since, undefined, now) })}`}
    </span>
  );
}

function Actions({ session, onTerminal }: { session: Session; onTerminal: boolean }) {
  const status = useStatus();
  const [ending, setEnding] = useState(false);
  const [restarting, setRestarting] = useState(false);
  const ended = hasEnded(session);
  const running = session.state === SessionState.RUNNING;
  const name = session.spec?.name ?? session.id;
  const extend = async () => {
    try {
      await api.extendSession({ session: session.id });
      notify(t("extended"));
    } catch (error) {
      notifyProblem(t("extend"), error);
    }
  };
  const hold = async (held: boolean) => {
    try {
      await api.updateSession({ session: session.id, spec: { hold: held }, updateMask: { paths: ["hold"] } });
      notify(t(held ? "heldDone" : "releasedDone", { name }), { undo: () => void hold(!held) });
    } catch (error) {
      notifyProblem(t(held ? "holdBack" : "release"), error);
    }
  };
  const copy = async (text: string) => {
    await navigator.clipboard.writeText(text);
    notify(t("copied"), { description: text });
  };
  return (
    <>
      {running && (
        <>
          {!onTerminal && (
            <ButtonLink
              look="primary"
              to={`/sessions/${session.id}/terminal`}
              icon={<SquareTerminal size={16} aria-hidden="true" />}
            >
              {t("terminal")}
            </ButtonLink>
          )}
          <Button icon={<Timer size={16} aria-hidden="true" />} onClick={() => void extend()}>
            {t("extend")}
          </Button>
        </>
      )}
      {!ended && (
        <Button look="danger" disabled={status.state !== "live"} onClick={() => setEnding(true)}>
          {t("end")}…
        </Button>
      )}
      <Menu
        trigger={
          <IconButton label={t("moreActions")} look="plain">
            <MoreHorizontal size={17} aria-hidden="true" />
          </IconButton>
        }
      >
        {session.state === SessionState.PENDING && (
          <MenuItem
            icon={session.spec?.hold ? <Play size={15} aria-hidden="true" /> : <Pause size={15} aria-hidden="true" />}
            onSelect={() => void hold(!session.spec?.hold)}
          >
            {t(session.spec?.hold ? "release" : "holdBack")}
          </MenuItem>
        )}
        {!ended && session.state !== SessionState.PENDING && (
          <MenuItem icon={<RotateCcw size={15} aria-hidden="true" />} onSelect={() => setRestarting(true)}>
            {t("restart")}…
          </MenuItem>
        )}
        {!ended && <MenuSeparator />}
        <MenuItem icon={<Hash size={15} aria-hidden="true" />} onSelect={() => void copy(session.id)}>
          {t("copyId")}
        </MenuItem>
        <MenuItem icon={<CopyPlus size={15} aria-hidden="true" />} onSelect={() => void copy(location.href)}>
          {t("copyLink")}
        </MenuItem>
      </Menu>
      {ending && <EndDialog sessions={[session]} onClose={() => setEnding(false)} />}
      {restarting && (
        <ConfirmDialog
          title={t("restartTitle", { name })}
          action={t("restart")}
          onConfirm={async () => {
            await api.restartSession({ session: session.id });
            notify(t("restarted", { name }));
          }}
          onClose={() => setRestarting(false)}
        >
          <p>{t("restartMeans", { count: session.kernels.length })}</p>
        </ConfirmDialog>
      )}
    </>
  );
}
