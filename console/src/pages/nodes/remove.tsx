import { fleet } from "../../api/fleet";
import { ConfirmDialog } from "../../design/dialog";
import { notify } from "../../design/notify";
import type { Agent } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { useSessions } from "../../parts/store";
import { t } from "../../text/administration";
import { SessionsThere } from "./drain";
import { sessionsOn } from "./state";

interface Removal {
  agent: Agent;
  onClose: () => void;
  onDone: () => void;
}

/** Removes a node that runs nothing; the server refuses it while something runs. */
export function DeleteDialog({ agent, onClose, onDone }: Removal) {
  const remove = async () => {
    await fleet.deleteAgent({ agent: agent.id });
    onDone();
    notify(t("nodeDeleted", { name: agent.id }));
  };
  return (
    <ConfirmDialog
      title={t("deleteNodeQuestion", { name: agent.id })}
      action={t("delete")}
      onConfirm={remove}
      onClose={onClose}
    >
      <p>{t("deleteNodeMeans")}</p>
    </ConfirmDialog>
  );
}

/** Makes a node's certificate worthless, whatever it runs. */
export function RevokeDialog({ agent, onClose, onDone }: Removal) {
  const there = sessionsOn(useSessions(), agent.id);
  const revoke = async () => {
    await fleet.revokeAgent({ agent: agent.id });
    onDone();
    notify(t("nodeWasRevoked", { name: agent.id }));
  };
  return (
    <ConfirmDialog
      title={t("revokeNodeQuestion", { name: agent.id })}
      action={t("revoke")}
      onConfirm={revoke}
      onClose={onClose}
    >
      <p>{t("revokeNodeMeans")}</p>
      <SessionsThere sessions={there} none={t("nothingRunsThere")} what={() => t("fateLost")} />
    </ConfirmDialog>
  );
}

/** Says that a node whose loss is held is really lost. */
export function ConfirmLostDialog({ agent, onClose, onDone }: Removal) {
  const there = sessionsOn(useSessions(), agent.id);
  const confirm = async () => {
    await fleet.confirmLostAgents({ agents: [agent.id] });
    onDone();
    notify(t("lossConfirmed", { name: agent.id }));
  };
  return (
    <ConfirmDialog
      title={t("confirmLostQuestion", { name: agent.id })}
      action={t("confirmLost")}
      onConfirm={confirm}
      onClose={onClose}
    >
      <p>{t("confirmLostMeans")}</p>
      <SessionsThere sessions={there} none={t("nothingRunsThere")} what={() => t("fateLost")} />
    </ConfirmDialog>
  );
}

/** Ends what a node runs and the database does not know. */
export function EndOrphansDialog({ agent, onClose, onDone }: Removal) {
  const end = async () => {
    const { attemptIds } = await fleet.endOrphans({ agent: agent.id });
    onDone();
    notify(t("orphansEnd", { count: attemptIds.length }));
  };
  return (
    <ConfirmDialog
      title={t("endOrphansQuestion", { name: agent.id })}
      action={t("end")}
      onConfirm={end}
      onClose={onClose}
    >
      <p>{t("endOrphansMeans")}</p>
    </ConfirmDialog>
  );
}
