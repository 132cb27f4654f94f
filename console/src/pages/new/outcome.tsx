import { CircleCheck, Hourglass, LoaderCircle, WandSparkles } from "lucide-react";
import { Button } from "../../design/button";
import { classes } from "../../design/classes";
import type { PlacementPreview, RequestChange, Shortfall } from "../../gen/retinue/manager/v1/session_service_pb";
import { reasonWords } from "../../live/reasons";
import { Trouble } from "../../parts/basics";
import { amount, amountText } from "../../text/format";
import { language, t } from "../../text/language";
import type { Preview } from "./preview";

/** What would happen to the request, in a sentence. */
export function Verdict({ preview, readable }: { preview: Preview; readable: boolean }) {
  const { outcome, problem, current } = preview;
  if (!readable || problem !== undefined)
    return (
      <p className="verdict min-w-0 grow text-bad">
        {t(readable && problem?.fields.length === 0 ? "wouldBeRefused" : "fieldsToCorrect")}
      </p>
    );
  if (outcome === undefined) {
    return (
      <p role="status" className="verdict flex min-w-0 grow items-center gap-2 text-quiet">
        <LoaderCircle size={17} className="animate-spin" aria-hidden="true" />
        {t("checking")}
      </p>
    );
  }
  const starts = outcome.kernels.length > 0;
  const nodes = [...new Set(outcome.kernels.map(({ agent }) => agent))];
  return (
    <p
      role="status"
      title={outcome.reason || undefined}
      className={classes("verdict flex min-w-0 grow items-start gap-2 font-medium", starts ? "text-good" : "text-warn")}
    >
      {starts ? (
        <CircleCheck size={18} aria-hidden="true" className="mt-0.5 shrink-0" />
      ) : (
        <Hourglass size={18} aria-hidden="true" className="mt-0.5 shrink-0" />
      )}
      <span className={classes("min-w-0 wrap-anywhere", !current && "opacity-80")}>
        {starts ? t(nodes.length === 1 ? "startsNowOn" : "startsNowOver", startWords(nodes)) : t("wouldWaitNow")}
      </span>
    </p>
  );
}

function startWords(nodes: readonly string[]) {
  return { nodes: nodes.slice(0, 3).join(", ") + (nodes.length > 3 ? "…" : ""), count: nodes.length };
}

/** Why it would wait, by how much, and what would start it. */
export function Reasons({ preview, onApply }: { preview: Preview; onApply: (change: RequestChange) => void }) {
  const { outcome, problem } = preview;
  if (problem !== undefined) return problem.fields.length === 0 ? <Trouble problem={problem} /> : null;
  if (outcome === undefined || outcome.kernels.length > 0) return null;
  return (
    <div className="outcome flex flex-col gap-2">
      {/* The server speaks English: others have the reason in their words, with the amounts. */}
      {language() === "en" && outcome.message !== "" ? (
        <p className="wrap-anywhere first-letter:uppercase">{outcome.message}</p>
      ) : (
        <>
          <p title={outcome.message}>{reasonWords(outcome.reason)}</p>
          <Shortfalls outcome={outcome} />
        </>
      )}
      {outcome.wouldStartWith.length > 0 && (
        <>
          <p className="text-sm font-medium" id="would-start-with">
            {t("wouldStartWith")}
          </p>
          <ul aria-labelledby="would-start-with" className="flex flex-col items-start gap-1.5">
            {outcome.wouldStartWith.map((change) => (
              <li key={change.text} className="max-w-full">
                {change.change.case === undefined ? (
                  change.text
                ) : (
                  <Button
                    size="small"
                    icon={<WandSparkles size={14} aria-hidden="true" />}
                    onClick={() => onApply(change)}
                  >
                    {change.text}
                  </Button>
                )}
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

function Shortfalls({ outcome }: { outcome: PlacementPreview }) {
  const shown = outcome.shortfalls.filter(
    ({ slot, requested, free }) => slot !== "" && requested !== "" && free !== "",
  );
  if (shown.length === 0) return null;
  return (
    <ul className="flex list-disc flex-col gap-0.5 pl-4 text-sm text-quiet">
      {shown.map((short) => (
        <li key={short.hostname + short.slot}>{shortfallWords(short)}</li>
      ))}
    </ul>
  );
}

function shortfallWords({ hostname, slot, requested, free, bestAgent }: Shortfall): string {
  return t(hostname === "" ? "shortTogether" : "shortOf", {
    hostname,
    slot,
    requested: amountText(slot, amount(requested)),
    free: amountText(slot, amount(free)),
    agent: bestAgent,
  });
}
