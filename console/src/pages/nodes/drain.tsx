import { useState } from "react";
import { fleet } from "../../api/fleet";
import { ConfirmDialog } from "../../design/dialog";
import { Checkbox, Select } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import type { Agent } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { type Session, SessionState, SessionType } from "../../gen/retinue/manager/v1/session_pb";
import { useSessions } from "../../parts/store";
import { t } from "../../text/administration";
import { durationOf } from "../../text/duration";
import { fate, sessionsOn } from "./state";

const DEADLINES = ["", "0", "900", "3600", "28800", "86400"] as const;
type Deadline = (typeof DEADLINES)[number];

const DEADLINE_WORDS = {
  "": "evictNever",
  "0": "evictNow",
  "900": "evictQuarter",
  "3600": "evictHour",
  "28800": "evictEightHours",
  "86400": "evictDay",
} as const;

/** Takes a node out of scheduling, and names before what becomes of each session there. */
export function DrainDialog({ agent, onClose, onDone }: { agent: Agent; onClose: () => void; onDone: () => void }) {
  const [deadline, setDeadline] = useState<Deadline>("");
  const [keepSystem, setKeepSystem] = useState(false);
  const there = sessionsOn(useSessions(), agent.id);
  const system = there.some((session) => session.spec?.type === SessionType.SYSTEM);
  const drain = async () => {
    await fleet.drainAgent({
      agent: agent.id,
      keepSystem,
      ...(deadline !== "" && { deadline: durationOf(Number(deadline)) }),
    });
    onDone();
    const undo = () =>
      void fleet.undrainAgent({ agent: agent.id }).then(onDone, (error) => notifyProblem(t("failed"), error));
    notify(t("nodeDrained", { name: agent.id }), { undo });
  };
  return (
    <ConfirmDialog
      title={t("drainQuestion", { name: agent.id })}
      action={t("drain")}
      onConfirm={drain}
      onClose={onClose}
    >
      <p>{t("drainMeans")}</p>
      <Select
        label={t("evict")}
        value={deadline}
        onChange={setDeadline}
        options={DEADLINES.map((value) => ({ value, label: t(DEADLINE_WORDS[value]) }))}
      />
      {system && <Checkbox label={t("keepSystem")} checked={keepSystem} onChange={setKeepSystem} />}
      <SessionsThere
        sessions={there}
        none={t("drainTouchesNone")}
        what={(session) => t(fate(session, keepSystem, deadline !== ""))}
      />
    </ConfirmDialog>
  );
}

/** Puts a node back into scheduling. */
export function UndrainDialog({ agent, onClose, onDone }: { agent: Agent; onClose: () => void; onDone: () => void }) {
  const waiting = useSessions().filter(
    (session) =>
      session.state === SessionState.PENDING && (session.spec?.resourceGroup || "default") === agent.resourceGroup,
  );
  const undrain = async () => {
    await fleet.undrainAgent({ agent: agent.id });
    onDone();
    notify(t("nodeUndrained", { name: agent.id }));
  };
  return (
    <ConfirmDialog
      title={t("undrainQuestion", { name: agent.id })}
      action={t("undrain")}
      onConfirm={undrain}
      onClose={onClose}
    >
      <p>{t("undrainMeans", { group: agent.resourceGroup })}</p>
      <SessionsThere sessions={waiting} none={t("undrainTouchesNone")} what={() => t("mayBePlaced")} />
    </ConfirmDialog>
  );
}

const MOST = 50;

/** Sessions by name and owner, and what becomes of each. */
export function SessionsThere({
  sessions,
  none,
  what,
}: {
  sessions: readonly Session[];
  none: string;
  what: (session: Session) => string;
}) {
  if (sessions.length === 0) return <p className="text-quiet">{none}</p>;
  return (
    <ul className="sessions-there flex flex-col divide-y divide-line rounded-md border border-line">
      {sessions.slice(0, MOST).map((session) => (
        <li key={session.id} className="flex flex-wrap items-baseline gap-x-3 px-3 py-1.5">
          <span className="min-w-0 grow font-medium wrap-anywhere">
            {session.spec?.name || session.id.slice(0, 8)}{" "}
            <span className="font-normal text-quiet">{session.owner}</span>
          </span>
          <span className="text-sm text-quiet">{what(session)}</span>
        </li>
      ))}
      {sessions.length > MOST && (
        <li className="px-3 py-1.5 text-quiet">{t("andMore", { count: sessions.length - MOST })}</li>
      )}
    </ul>
  );
}
