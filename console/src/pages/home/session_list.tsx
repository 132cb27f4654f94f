import { ChevronRight } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { Card } from "../../design/card";
import type { Session } from "../../gen/retinue/manager/v1/session_pb";
import { whyOf } from "../../live/reasons";
import { agentsOf, asked, shownState, sizeOf, total, typeShown } from "../../live/state";
import { ClusterTag, ConditionMark, StateMark } from "../../parts/basics";
import { amounts, between } from "../../text/format";
import { t } from "../../text/language";

/** So many are shown; the rest is one click away. */
const SHOWN = 6;

/** A few sessions, each on two lines: what it is, and where or why. */
export function SessionList({
  title,
  sessions,
  tab,
  now,
  empty,
}: {
  title: string;
  sessions: readonly Session[];
  tab: "running" | "waiting" | "ended";
  now: number;
  empty: string;
}) {
  return (
    <Card
      title={title}
      flush
      actions={
        sessions.length > 0 && (
          <Link
            to={`/sessions?tab=${tab}`}
            className="inline-flex items-center gap-0.5 text-sm text-quiet no-underline hover:text-accent"
          >
            {t("seeAll", { count: sessions.length })}
            <ChevronRight size={14} aria-hidden="true" />
          </Link>
        )
      }
    >
      {sessions.length === 0 ? (
        <p className="px-4 py-3 text-quiet">{empty}</p>
      ) : (
        <ul>
          {sessions.slice(0, SHOWN).map((session) => (
            <Item key={session.id} session={session} now={now} second={secondLine(session, tab)} />
          ))}
        </ul>
      )}
    </Card>
  );
}

function Item({ session, now, second }: { session: Session; now: number; second: { text: ReactNode; title: string } }) {
  const name = session.spec?.name || session.id;
  return (
    <li className="flex items-center gap-3 border-b border-line px-4 py-2 last:border-0 hover:bg-sunken/60">
      <div className="min-w-0 grow">
        <div className="flex items-center gap-2">
          <Link
            to={`/sessions/${session.id}`}
            title={name}
            className="truncate font-medium text-ink no-underline hover:text-accent hover:underline"
          >
            {name}
          </Link>
          <ConditionMark conditions={session.conditions} />
          <span className="truncate text-xs text-quiet" title={session.owner}>
            {session.owner}
          </span>
        </div>
        <div className="truncate text-sm text-quiet" title={second.title}>
          {second.text}
        </div>
      </div>
      <StateMark shown={shownState(session)} />
      <span className="w-16 shrink-0 text-right max-sm:hidden text-sm whitespace-nowrap text-quiet tabular-nums">
        {session.createTime && between(session.createTime, session.endTime, now)}
      </span>
    </li>
  );
}

function secondLine(session: Session, tab: "running" | "waiting" | "ended"): { text: ReactNode; title: string } {
  const why = whyOf(session);
  if (tab !== "running" && why.text !== "") return why;
  const { disk: _, ...shown } = total(session);
  const agents = agentsOf(session).join(" ");
  const words = [typeShown(session), agents, amounts(shown)].filter(Boolean).join(" · ");
  const title = `${words} · ${t("eachKernel", { amounts: amounts(asked(session)) })}`;
  if (sizeOf(session) === 1) return { text: words, title };
  return {
    text: (
      <span className="inline-flex items-center gap-2">
        <ClusterTag session={session} /> {words}
      </span>
    ),
    title,
  };
}
