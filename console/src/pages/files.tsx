import { FolderTree } from "lucide-react";
import { Suspense, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { ButtonLink } from "../design/button";
import { Card } from "../design/card";
import { classes } from "../design/classes";
import { SearchField } from "../design/fields";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { SessionState } from "../gen/retinue/manager/v1/session_pb";
import { agentsOf } from "../live/state";
import { lazy } from "../parts/lazy";
import { useSessions, useStatus } from "../parts/store";
import { t } from "../text/language";

const Browser = lazy(() => import("./session/files"));
const MOST_LISTED = 100;

/** Sessions that run, and the files of the one that is chosen. */
export default function Files() {
  const all = useSessions();
  const status = useStatus();
  const [parameters] = useSearchParams();
  const [words, setWords] = useState("");
  const running = all.filter((session) => session.state === SessionState.RUNNING);
  const chosen = running.find(({ id }) => id === parameters.get("session")) ?? running[0];
  const wanted = words.toLowerCase();
  const listed = running.filter(({ spec, owner }) => `${spec?.name} ${owner}`.toLowerCase().includes(wanted));
  return (
    <Page title={t("files")} lead={t("filesLead")}>
      {status.state === "loading" ? (
        <Skeleton lines={6} />
      ) : chosen === undefined ? (
        <Card>
          <Empty
            icon={<FolderTree size={34} aria-hidden="true" />}
            title={t("nothingToBrowse")}
            action={
              <ButtonLink look="primary" to="/sessions/new">
                {t("newSession")}
              </ButtonLink>
            }
          >
            {t("nothingToBrowseHelp")}
          </Empty>
        </Card>
      ) : (
        <div className="grid items-start gap-4 lg:grid-cols-[17rem_minmax(0,1fr)]">
          <nav
            aria-label={t("runningSessions")}
            className="flex min-w-0 flex-col gap-2 rounded-lg border border-line bg-card p-2"
          >
            {running.length > 8 && (
              <SearchField label={t("search")} placeholder={t("search")} value={words} onChange={setWords} />
            )}
            <ul className="flex max-h-48 flex-col overflow-y-auto lg:max-h-[70vh]">
              {listed.slice(0, MOST_LISTED).map((session) => (
                <li key={session.id}>
                  <Link
                    to={`/files?session=${session.id}`}
                    aria-current={session.id === chosen.id}
                    className={classes(
                      "flex min-w-0 flex-col rounded-md px-2.5 py-1.5 no-underline hover:bg-sunken",
                      session.id === chosen.id ? "bg-accent-soft text-accent" : "text-ink",
                    )}
                  >
                    <span className="truncate font-medium" title={session.spec?.name}>
                      {session.spec?.name}
                    </span>
                    <span
                      className={classes("truncate text-xs", session.id !== chosen.id && "text-quiet")}
                      title={`${session.owner} · ${agentsOf(session).join(", ")}`}
                    >
                      {session.owner} · {agentsOf(session).slice(0, 2).join(", ")}
                    </span>
                  </Link>
                </li>
              ))}
            </ul>
            {listed.length === 0 && <p className="px-2.5 py-1.5 text-quiet">{t("nothingMatches")}</p>}
            {listed.length > MOST_LISTED && (
              <p className="px-2.5 py-1.5 text-sm text-quiet">{t("mostShown", { count: MOST_LISTED })}</p>
            )}
          </nav>
          <div className="min-w-0">
            <Suspense fallback={<Skeleton lines={6} />}>
              <Browser key={chosen.id} session={chosen} />
            </Suspense>
          </div>
        </div>
      )}
    </Page>
  );
}
