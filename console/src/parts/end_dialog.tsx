import { useState } from "react";
import { sessions as api } from "../api/client";
import { type Problem, problemOf, problemOfStatus } from "../api/problem";
import { Button } from "../design/button";
import { Dialog } from "../design/dialog";
import { notify } from "../design/notify";
import type { Session } from "../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "../live/reduce";
import { shownState } from "../live/state";
import { t } from "../text/language";
import { StateMark, Trouble } from "./basics";

/** So many sessions are named; of more, how many there are. */
const NAMED = 8;

/** Asks, and ends the sessions; those that are refused stay, with the reason. */
export function EndDialog({ sessions, onClose }: { sessions: readonly Session[]; onClose: () => void }) {
  // What is asked about does not change while a list behind it does.
  const [asked] = useState(() => sessions.filter((session) => !hasEnded(session)));
  const [left, setLeft] = useState<readonly { session: Session; problem?: Problem }[]>(() =>
    asked.map((session) => ({ session })),
  );
  const [busy, setBusy] = useState<"end" | "now">();
  const [problem, setProblem] = useState<Problem>();
  const end = async (force: boolean) => {
    setBusy(force ? "now" : "end");
    setProblem(undefined);
    const before = left.map(({ session }) => session);
    try {
      const { results } = await api.batchTerminateSessions({ sessions: before.map(({ id }) => id), force });
      const refused = before.flatMap((session, at) => {
        const outcome = results[at]?.outcome;
        return outcome?.case === "refused" ? [{ session, problem: problemOfStatus(outcome.value) }] : [];
      });
      const done = before.length - refused.length;
      if (done === 1 && before.length === 1) notify(t("endsOne", { name: nameOf(before[0]) }));
      else if (done > 0) notify(t("endsMany", { count: done }));
      if (refused.length === 0) onClose();
      else setLeft(refused);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(undefined);
  };
  const [only] = left;
  return (
    <Dialog
      title={
        left.length === 1 ? t("endOneTitle", { name: nameOf(only?.session) }) : t("endTitle", { count: left.length })
      }
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button look="danger" busy={busy === "now"} disabled={busy !== undefined} onClick={() => void end(true)}>
            {t("endNow")}
          </Button>
          <Button look="primary" busy={busy === "end"} disabled={busy !== undefined} onClick={() => void end(false)}>
            {t("end")}
          </Button>
        </>
      }
    >
      <p>{t("endMeans")}</p>
      <ul className="flex flex-col gap-1.5">
        {left.slice(0, NAMED).map((each) => (
          <li key={each.session.id} className="flex flex-col gap-1.5">
            <span className="flex items-center gap-2">
              <span className="truncate font-medium" title={each.session.id}>
                {nameOf(each.session)}
              </span>
              <StateMark shown={shownState(each.session)} />
              <span className="truncate text-sm text-quiet" title={each.session.owner}>
                {each.session.owner}
              </span>
            </span>
            <Trouble problem={each.problem} />
          </li>
        ))}
      </ul>
      {left.length > NAMED && <p className="text-quiet">{t("andMore", { count: left.length - NAMED })}</p>}
      <p className="text-sm text-quiet">{t("endNowMeans")}</p>
      <Trouble problem={problem} />
    </Dialog>
  );
}

function nameOf(session: Session | undefined): string {
  return session?.spec?.name || session?.id || "";
}
