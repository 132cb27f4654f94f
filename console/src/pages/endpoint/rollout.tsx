import { CircleCheck, CircleDot, Circle as CircleIcon, Pause, Play, SkipForward, Undo2 } from "lucide-react";
import { useState } from "react";
import { endpoints } from "../../api/endpoints";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { classes } from "../../design/classes";
import { ConfirmDialog } from "../../design/dialog";
import { notify, notifyProblem } from "../../design/notify";
import { type Endpoint, RolloutState } from "../../gen/retinue/manager/v1/endpoint_pb";
import { isRunning, rolloutSteps } from "../../live/rollout";
import { moment } from "../../text/format";
import { t } from "../../text/language";
import { RolloutMark } from "./marks";

const ICONS = {
  done: <CircleCheck size={18} aria-hidden="true" className="text-good" />,
  current: <CircleDot size={18} aria-hidden="true" className="text-accent" />,
  next: <CircleIcon size={18} aria-hidden="true" className="text-edge" />,
} as const;

/** The newest rollout: where it is, what comes, and what can be done. */
export function RolloutCard({ endpoint, reload }: { endpoint: Endpoint; reload: () => void }) {
  const [busy, setBusy] = useState("");
  const [aborting, setAborting] = useState(false);
  const rollout = endpoint.rollout;
  if (rollout === undefined) return null;
  const request = { endpoint: endpoint.id, etag: endpoint.etag };
  const act = async (name: "promote" | "pause" | "resume") => {
    setBusy(name);
    try {
      if (name === "promote") await endpoints.promoteRollout(request);
      else if (name === "pause") await endpoints.pauseRollout(request);
      else await endpoints.resumeRollout(request);
      notify(t(name === "promote" ? "promoted" : name === "pause" ? "pausedNotice" : "resumedNotice"));
    } catch (error) {
      notifyProblem(t("rolloutRefused"), error);
    }
    setBusy("");
    reload();
  };
  const progressing = rollout.state === RolloutState.PROGRESSING;
  return (
    <Card
      title={
        <span className="flex flex-wrap items-center gap-2">
          {t("rolloutOf", { from: rollout.fromRevision, to: rollout.toRevision })}
          <RolloutMark rollout={rollout} />
        </span>
      }
      actions={
        isRunning(rollout) && (
          <>
            {progressing && (
              <Button
                size="small"
                icon={<Pause size={14} aria-hidden="true" />}
                busy={busy === "pause"}
                onClick={() => void act("pause")}
              >
                {t("pause")}
              </Button>
            )}
            {rollout.state === RolloutState.PAUSED && (
              <Button
                size="small"
                icon={<Play size={14} aria-hidden="true" />}
                busy={busy === "resume"}
                onClick={() => void act("resume")}
              >
                {t("resume")}
              </Button>
            )}
            {progressing && (
              <Button
                size="small"
                look="primary"
                icon={<SkipForward size={14} aria-hidden="true" />}
                busy={busy === "promote"}
                onClick={() => void act("promote")}
              >
                {t("promote")}
              </Button>
            )}
            {rollout.state !== RolloutState.ROLLING_BACK && (
              <Button
                size="small"
                look="danger"
                icon={<Undo2 size={14} aria-hidden="true" />}
                onClick={() => setAborting(true)}
              >
                {t("abort")}…
              </Button>
            )}
          </>
        )
      }
    >
      <ol aria-label={t("rolloutSteps")} className="flex flex-col gap-3 sm:flex-row sm:gap-0">
        {rolloutSteps(endpoint).map((step, at, steps) => (
          <li
            key={step.label}
            aria-current={step.place === "current" ? "step" : undefined}
            className="flex min-w-0 flex-1 gap-2 sm:flex-col"
          >
            <span className="flex items-center">
              {ICONS[step.place]}
              {at < steps.length - 1 && (
                <span
                  aria-hidden="true"
                  className={classes("mx-2 hidden h-0.5 grow sm:block", step.place === "done" ? "bg-good" : "bg-line")}
                />
              )}
            </span>
            <span className="min-w-0 pr-3">
              <span className={classes("block font-medium", step.place === "next" && "text-quiet")}>{step.label}</span>
              <span className="block text-sm text-quiet">{step.note}</span>
            </span>
          </li>
        ))}
      </ol>
      <div className="mt-3 text-sm text-quiet">
        {rollout.message !== "" && <p className="first-letter:uppercase">{rollout.message}</p>}
        {rollout.sinceTime && (
          <p className="first-letter:uppercase">{t("sinceTime", { time: moment(rollout.sinceTime) })}</p>
        )}
      </div>
      {aborting && (
        <ConfirmDialog
          title={t("abortQuestion", { number: rollout.toRevision })}
          action={t("abort")}
          onClose={() => setAborting(false)}
          onConfirm={async () => {
            await endpoints.rollBackEndpoint(request);
            notify(t("goesBack", { number: rollout.fromRevision }));
            reload();
          }}
        >
          <p>{t("abortWhat", { from: rollout.fromRevision, to: rollout.toRevision })}</p>
        </ConfirmDialog>
      )}
    </Card>
  );
}
