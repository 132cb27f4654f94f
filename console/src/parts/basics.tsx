import { CircleAlert, TriangleAlert } from "lucide-react";
import type { Problem } from "../api/problem";
import { Badge, type Tone } from "../design/badge";
import { Button } from "../design/button";
import type { Condition, Session } from "../gen/retinue/manager/v1/session_pb";
import { askedOtherwise, clusterTag, type Look, type Shown } from "../live/state";
import { moment } from "../text/format";
import { t } from "../text/language";

const TONES: Record<Look, Tone> = {
  waiting: "warn",
  starting: "busy",
  running: "good",
  ending: "busy",
  success: "good",
  failure: "bad",
  ended: "neutral",
};

export function StateMark({ shown }: { shown: Shown }) {
  return (
    <Badge tone={TONES[shown.look]} className="state">
      <span aria-hidden="true">{shown.icon}</span> {shown.word}
    </Badge>
  );
}

/** Where the kernels of a session are, and beside it what was asked for where that differs. */
export function ClusterTag({ session }: { session: Session }) {
  const other = askedOtherwise(session);
  return (
    <span className="inline-flex items-center gap-1.5">
      <Badge className="tag">{clusterTag(session)}</Badge>
      {other !== "" && <span className="text-xs whitespace-nowrap text-quiet">{other}</span>}
    </span>
  );
}

/** What is noteworthy, with its type and since when. Several may have one type. */
export function Conditions({ conditions }: { conditions: readonly Condition[] }) {
  return conditions.map((condition) => (
    <p
      key={`${condition.type} ${condition.message}`}
      className="condition flex items-start gap-2 rounded-md bg-warn-soft px-3 py-2 wrap-anywhere text-warn"
    >
      <TriangleAlert size={16} className="mt-0.5 shrink-0" aria-hidden="true" />
      <span>
        <code>{condition.type}</code> {condition.message}
        {condition.sinceTime && (
          <small className="text-current"> {t("sinceTime", { time: moment(condition.sinceTime) })}</small>
        )}
      </span>
    </p>
  ));
}

/** A mark in a list for what has conditions; their words are its title. */
export function ConditionMark({ conditions }: { conditions: readonly Condition[] }) {
  if (conditions.length === 0) return null;
  const types = [...new Set(conditions.map(({ type }) => type))].join(", ");
  const words = conditions.map(({ type, message }) => `${type}: ${message}`).join("\n");
  return (
    <span className="condition-mark text-warn" role="img" aria-label={types} title={words}>
      ⚠
    </span>
  );
}

/** An error in the server's words: those of its fields say all of it. */
export function Trouble({ problem, retry }: { problem: Problem | undefined; retry?: () => void }) {
  if (problem === undefined) return null;
  return (
    <div role="alert" className="trouble flex items-start gap-2.5 rounded-md bg-bad-soft px-3 py-2.5 text-bad">
      <CircleAlert size={17} className="mt-0.5 shrink-0" aria-hidden="true" />
      <div className="min-w-0 grow wrap-anywhere">
        <p>
          {problem.reason && <code>{problem.reason}</code>} {problem.fields.length === 0 && problem.message}
        </p>
        {problem.fields.length > 0 && (
          <ul>
            {problem.fields.map(({ field, description }) => (
              <li key={field + description}>
                <code>{field}</code>: {description}
              </li>
            ))}
          </ul>
        )}
      </div>
      {retry && (
        <Button size="small" onClick={retry}>
          {t("retry")}
        </Button>
      )}
    </div>
  );
}
