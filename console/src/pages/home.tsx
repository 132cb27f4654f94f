import { timestampDate } from "@bufbuild/protobuf/wkt";
import { CirclePlus, SquareTerminal } from "lucide-react";
import { type ReactNode, useContext, useMemo } from "react";
import { Link } from "react-router";
import { allPages } from "../api/client";
import { endpoints as endpointApi } from "../api/endpoints";
import { fleet } from "../api/fleet";
import { ButtonLink } from "../design/button";
import { Card, Figure } from "../design/card";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import type { Agent } from "../gen/retinue/manager/v1/fleet_service_pb";
import { summary } from "../live/summary";
import { CallerContext } from "../parts/caller";
import { useLoaded, useNow, useSessions, useStatus } from "../parts/store";
import { span } from "../text/format";
import { t } from "../text/language";
import { EndpointCard } from "./home/endpoint_card";
import { HealthCard } from "./home/health_card";
import { ClusterCard, QuotaCard } from "./home/room_cards";
import { SessionList } from "./home/session_list";

const PERIOD = 10;

/** What runs, what waits and why, and what may still be used. */
export default function Home() {
  const { name, role, memberships } = useContext(CallerContext);
  const sessions = useSessions();
  const status = useStatus();
  const now = useNow();
  const minute = Math.floor(now / 60_000) * 60_000;
  const found = useMemo(() => summary(sessions, minute), [sessions, minute]);
  const nodes = useLoaded(
    "nodes",
    (signal) =>
      allPages<Agent>(async (pageToken) => {
        const page = await fleet.listAgents({ pageToken, pageSize: 500 }, { signal });
        return { items: page.agents, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  const endpoints = useLoaded(
    "endpoints",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await endpointApi.listEndpoints({ pageToken, pageSize: 500 }, { signal });
        return { items: page.endpoints, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  const ready = endpoints.value?.filter(({ readyReplicas, target }) => readyReplicas >= target).length;
  const [longest] = found.waiting;
  const first = status.state === "live" && sessions.length === 0;
  return (
    <Page
      title={t("home")}
      actions={
        !first && (
          <ButtonLink look="primary" to="/sessions/new" icon={<CirclePlus size={16} aria-hidden="true" />}>
            {t("newSession")}
          </ButtonLink>
        )
      }
    >
      <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,2fr)_minmax(0,1fr)]">
        <div className="flex min-w-0 flex-col gap-4">
          {status.state === "loading" && (
            <Card>
              <Skeleton lines={6} />
            </Card>
          )}
          {first && <Welcome />}
          {sessions.length > 0 && (
            <>
              <div className="grid grid-cols-2 gap-4 xl:grid-cols-4">
                <FigureLink to="/sessions?tab=running">
                  <Figure
                    label={t("runsNow")}
                    value={found.running.length - found.starting}
                    note={found.starting > 0 ? t("startingNow", { count: found.starting }) : t("noneStarting")}
                  />
                </FigureLink>
                <FigureLink to="/sessions?tab=waiting">
                  <Figure
                    label={t("waitsNow")}
                    value={found.waiting.length}
                    note={
                      longest?.createTime
                        ? t("longestWait", { time: minutes(minute - timestampDate(longest.createTime).getTime()) })
                        : t("noneWaits")
                    }
                  />
                </FigureLink>
                <FigureLink to="/sessions?tab=ended&q=state%3Afailed">
                  <Figure
                    label={t("failedLately")}
                    value={found.failedToday}
                    note={t("endedToday", { count: found.endedToday })}
                  />
                </FigureLink>
                <FigureLink to="/endpoints">
                  <Figure
                    label={t("endpointsReady")}
                    value={ready ?? "–"}
                    note={endpoints.value && t("ofEndpoints", { count: endpoints.value.length })}
                  />
                </FigureLink>
              </div>
              {found.waiting.length > 0 && (
                <SessionList
                  title={t("waitingAndWhy")}
                  sessions={found.waiting}
                  tab="waiting"
                  now={now}
                  empty={t("nothingWaits")}
                />
              )}
              <SessionList
                title={t("runningSessions")}
                sessions={found.running}
                tab="running"
                now={now}
                empty={t("nothingRuns")}
              />
              <SessionList
                title={t("recentlyEnded")}
                sessions={found.ended}
                tab="ended"
                now={now}
                empty={t("nothingEnded")}
              />
            </>
          )}
        </div>
        <div className="flex min-w-0 flex-col gap-4">
          <ClusterCard nodes={nodes} />
          <QuotaCard caller={name} projects={memberships.map(({ project }) => project)} />
          <EndpointCard endpoints={endpoints} />
          {role === UserRole.ADMIN && <HealthCard nodes={nodes} />}
        </div>
      </div>
    </Page>
  );
}

/** A length of time without its seconds. */
function minutes(milliseconds: number): string {
  const whole = Math.floor(milliseconds / 60_000);
  return whole < 1 ? "< 1m" : span(60 * whole);
}

function FigureLink({ to, children }: { to: string; children: ReactNode }) {
  return (
    <Link to={to} className="flex min-w-0 flex-col rounded-lg text-ink no-underline hover:brightness-97 *:grow">
      {children}
    </Link>
  );
}

/** For whoever has no session yet: the way to the first one. */
function Welcome() {
  return (
    <Card>
      <Empty
        icon={<SquareTerminal size={44} aria-hidden="true" />}
        title={t("welcomeTitle")}
        action={
          <ButtonLink
            look="primary"
            size="large"
            to="/sessions/new"
            className="mt-3"
            icon={<CirclePlus size={17} aria-hidden="true" />}
          >
            {t("newSession")}
          </ButtonLink>
        }
      >
        {t("welcomeMeans")}
      </Empty>
    </Card>
  );
}
