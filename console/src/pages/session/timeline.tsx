import { Card } from "../../design/card";
import { classes } from "../../design/classes";
import { Tooltip } from "../../design/tooltip";
import { type Session, type SessionEvent, SessionResult } from "../../gen/retinue/manager/v1/session_pb";
import { type Phase, type PhaseKind, phasesOf } from "../../live/phases";
import { hasEnded } from "../../live/reduce";
import { useNow } from "../../parts/store";
import { clock, moment, span } from "../../text/format";
import { type Key, t } from "../../text/language";

const LOOKS: Record<PhaseKind, { key: Key; bar: string; dot: string }> = {
  waiting: { key: "phaseWaiting", bar: "bg-warn-soft text-warn", dot: "bg-warn" },
  preparing: { key: "phasePreparing", bar: "bg-busy-soft text-busy", dot: "bg-busy" },
  running: { key: "phaseRunning", bar: "bg-good-soft text-good", dot: "bg-good" },
  ending: { key: "phaseEnding", bar: "bg-sunken text-quiet", dot: "bg-edge" },
};
/** The least share of the bar that a part has, to be seen and pointed at. */
const LEAST = 0.015;
/** From this share on, a part of the bar says what it is. */
const WORDED = 0.12;
const LISTED = 12;

/** The life of a session: its parts as one bar by their lengths, and below it each with its cause. */
export function Timeline({ session, events }: { session: Session; events: readonly SessionEvent[] }) {
  const now = useNow();
  const phases = phasesOf(session, events);
  const length = ({ from, to }: Phase) => Math.max(0, (to ?? now) - from);
  const whole = Math.max(
    1,
    phases.reduce((sum, phase) => sum + length(phase), 0),
  );
  const left = phases.length - LISTED;
  return (
    <Card title={t("timeline")}>
      <div className="flex h-7 gap-0.5 overflow-hidden rounded-md" aria-hidden="true">
        {phases.map((phase) => {
          const share = length(phase) / whole;
          const word = `${t(LOOKS[phase.kind].key)} ${span(length(phase) / 1000)}`;
          return (
            <Tooltip
              key={phase.from}
              label={[
                word,
                `${clock(new Date(phase.from))} – ${phase.to ? clock(new Date(phase.to)) : "…"}`,
                ...phase.causes,
              ].join("\n")}
            >
              <div
                className={classes(
                  "flex min-w-1 items-center truncate text-xs font-medium",
                  share >= WORDED && "px-2",
                  LOOKS[phase.kind].bar,
                )}
                style={{ flexGrow: Math.max(share, LEAST), flexBasis: 0 }}
              >
                {share >= WORDED && <span className="truncate">{word}</span>}
              </div>
            </Tooltip>
          );
        })}
      </div>
      <ol className="timeline mt-3 flex flex-wrap gap-x-6 gap-y-1.5" aria-label={t("timeline")}>
        {left > 0 && <li className="text-quiet">{t("earlierPhases", { count: left })}</li>}
        {phases.slice(-LISTED).map((phase) => (
          <li
            key={phase.from}
            className="flex min-w-0 items-baseline gap-1.5"
            title={new Date(phase.from).toLocaleString()}
          >
            <span aria-hidden="true" className={classes("size-2 shrink-0 rounded-full", LOOKS[phase.kind].dot)} />
            <span className="min-w-0">
              {t(LOOKS[phase.kind].key)} <strong className="tabular-nums">{span(length(phase) / 1000)}</strong>
              {phase.causes.length > 0 && <small className="wrap-anywhere"> {phase.causes.at(-1)}</small>}
            </span>
          </li>
        ))}
        {hasEnded(session) && (
          <li className="flex min-w-0 items-baseline gap-1.5" title={session.reason}>
            <span aria-hidden="true" className="size-2 shrink-0 rounded-full bg-ink" />
            <span>
              {endWords(session)} <small>{moment(session.endTime)}</small>
            </span>
          </li>
        )}
      </ol>
    </Card>
  );
}

function endWords(session: Session): string {
  const code = session.exitCode;
  if (session.result === SessionResult.SUCCESS) return t("endedWell");
  if (code !== undefined) return t("endedWithCode", { code });
  return t("ended");
}
