import { Ban, CircleOff, Ellipsis, ListX, Play, Trash2, Unplug } from "lucide-react";
import { useState } from "react";
import { Button, IconButton } from "../../design/button";
import { Menu, MenuItem, MenuSeparator } from "../../design/menu";
import { type Agent, AgentConditionType } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { t } from "../../text/administration";
import { DrainDialog, UndrainDialog } from "./drain";
import { ConfirmLostDialog, DeleteDialog, EndOrphansDialog, RevokeDialog } from "./remove";
import { hasCondition } from "./state";

type Asked = "drain" | "undrain" | "delete" | "revoke" | "lost" | "orphans";

const DIALOGS = {
  drain: DrainDialog,
  undrain: UndrainDialog,
  delete: DeleteDialog,
  revoke: RevokeDialog,
  lost: ConfirmLostDialog,
  orphans: EndOrphansDialog,
};

/** What an administrator can do with a node; each asks first. */
export function NodeActions({ agent, onDone }: { agent: Agent; onDone: () => void }) {
  const [asked, setAsked] = useState<Asked>();
  const Asking = asked && DIALOGS[asked];
  const turn = agent.drained ? "undrain" : "drain";
  return (
    <span className="inline-flex shrink-0 items-center gap-1">
      <Button size="small" onClick={() => setAsked(turn)}>
        {t(turn)}
        <span className="sr-only"> {agent.id}</span>
      </Button>
      <Menu
        trigger={
          <IconButton label={t("actionsOf", { name: agent.id })} size="small">
            <Ellipsis size={16} aria-hidden="true" />
          </IconButton>
        }
      >
        <MenuItem
          icon={agent.drained ? <Play size={15} aria-hidden="true" /> : <CircleOff size={15} aria-hidden="true" />}
          onSelect={() => setAsked(turn)}
        >
          {t(turn)}…
        </MenuItem>
        {hasCondition(agent, AgentConditionType.LOSS_HELD) && (
          <MenuItem icon={<Unplug size={15} aria-hidden="true" />} danger onSelect={() => setAsked("lost")}>
            {t("confirmLost")}…
          </MenuItem>
        )}
        {hasCondition(agent, AgentConditionType.ORPHANS) && (
          <MenuItem icon={<ListX size={15} aria-hidden="true" />} danger onSelect={() => setAsked("orphans")}>
            {t("endOrphans")}…
          </MenuItem>
        )}
        <MenuSeparator />
        <MenuItem icon={<Trash2 size={15} aria-hidden="true" />} danger onSelect={() => setAsked("delete")}>
          {t("delete")}…
        </MenuItem>
        <MenuItem icon={<Ban size={15} aria-hidden="true" />} danger onSelect={() => setAsked("revoke")}>
          {t("revoke")}…
        </MenuItem>
      </Menu>
      {Asking && <Asking agent={agent} onClose={() => setAsked(undefined)} onDone={onDone} />}
    </span>
  );
}
