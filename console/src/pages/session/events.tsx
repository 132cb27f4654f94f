import { CircleCheck, CircleDot, CircleX, Ellipsis, Hourglass, type LucideIcon, UserRound } from "lucide-react";
import { useState } from "react";
import { Card } from "../../design/card";
import { Choice } from "../../design/choice";
import { classes } from "../../design/classes";
import { Empty, Skeleton } from "../../design/states";
import type { Session } from "../../gen/retinue/manager/v1/session_pb";
import { sentenceOf, type Weight } from "../../live/story";
import { Trouble } from "../../parts/basics";
import { clock, moment } from "../../text/format";
import { t } from "../../text/language";
import { useJournal } from "./journal";

const LOOKS: Record<Weight, { icon: LucideIcon; colour: string }> = {
  step: { icon: CircleDot, colour: "text-busy" },
  good: { icon: CircleCheck, colour: "text-good" },
  bad: { icon: CircleX, colour: "text-bad" },
  wait: { icon: Hourglass, colour: "text-warn" },
  access: { icon: UserRound, colour: "text-accent" },
  detail: { icon: Ellipsis, colour: "text-quiet" },
};

type Shown = "all" | "main" | "access";

/** What happened to a session, from its journal, as it happens: the newest first. */
export default function Events({ session }: { session: Session }) {
  const journal = useJournal(session);
  const [shown, setShown] = useState<Shown>("all");
  const told = journal.events
    .map((event) => ({ event, sentence: sentenceOf(event) }))
    .filter(({ sentence: { weight } }) =>
      shown === "all" ? true : shown === "access" ? weight === "access" : weight !== "access" && weight !== "detail",
    )
    .reverse();
  return (
    <div className="flex flex-col gap-3">
      <span>
        <Choice
          label={t("events")}
          value={shown}
          onChange={setShown}
          options={[
            { value: "all", label: t("all") },
            { value: "main", label: t("mainEvents") },
            { value: "access", label: t("accessEvents") },
          ]}
        />
      </span>
      <Trouble problem={journal.problem} />
      <Card flush>
        {!journal.arrived && journal.problem === undefined ? (
          <Skeleton lines={6} className="p-4" />
        ) : told.length === 0 ? (
          <Empty title={t("noEvents")} />
        ) : (
          <ol aria-label={t("events")} className="py-2">
            {told.map(({ event, sentence }, at) => {
              const { icon: Icon, colour } = LOOKS[sentence.weight];
              const day = event.createTime && moment(event.createTime).split(",")[0];
              const before = told[at - 1]?.event.createTime;
              const newDay = day !== undefined && day !== (before && moment(before).split(",")[0]);
              return (
                <li key={String(event.revision)} title={sentence.contract}>
                  {newDay && <p className="px-4 pt-2 pb-1 text-xs font-semibold text-quiet">{day}</p>}
                  <div className="flex items-start gap-3 px-4 py-1.5 hover:bg-sunken/60">
                    <time className="w-16 shrink-0 pt-px text-sm text-quiet tabular-nums">
                      {event.createTime && clock(event.createTime)}
                    </time>
                    <Icon size={16} aria-hidden="true" className={classes("mt-0.5 shrink-0", colour)} />
                    <p className={classes("min-w-0 wrap-anywhere", sentence.weight === "detail" && "text-quiet")}>
                      {sentence.words}
                      {sentence.cause !== "" && <span className="text-quiet"> {sentence.cause}</span>}
                    </p>
                  </div>
                </li>
              );
            })}
          </ol>
        )}
      </Card>
    </div>
  );
}
