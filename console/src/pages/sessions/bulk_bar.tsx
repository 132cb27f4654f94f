import { Hand, ListOrdered, Play, X } from "lucide-react";
import { useState } from "react";
import { Button, IconButton } from "../../design/button";
import { Dialog } from "../../design/dialog";
import { TextField } from "../../design/fields";
import type { Session } from "../../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "../../live/reduce";
import { t } from "../../text/language";
import { canWait, setHold, setPriority } from "./changes";

/** What can be done with all that is selected. It lies over the list, so that no row moves when it comes. */
export function BulkBar({
  sessions,
  live,
  onEnd,
  onClear,
}: {
  sessions: readonly Session[];
  live: boolean;
  onEnd: () => void;
  onClear: () => void;
}) {
  const [naming, setNaming] = useState(false);
  const waiting = sessions.filter(canWait);
  const held = waiting.length > 0 && waiting.every((session) => session.spec?.hold);
  return (
    <div className="absolute bottom-4 left-1/2 z-20 flex max-w-[calc(100%-1rem)] -translate-x-1/2 flex-wrap items-center gap-1 rounded-lg border border-edge bg-card p-1.5 shadow-pop">
      <IconButton size="small" label={t("clearSelection")} onClick={onClear}>
        <X size={15} aria-hidden="true" />
      </IconButton>
      <span role="status" className="pr-2 font-medium whitespace-nowrap tabular-nums">
        {t("selected", { count: sessions.length })}
      </span>
      {waiting.length > 0 && (
        <>
          <Button
            size="small"
            disabled={!live}
            icon={<ListOrdered size={15} aria-hidden="true" />}
            onClick={() => setNaming(true)}
          >
            {t("setPriority")}…
          </Button>
          <Button
            size="small"
            disabled={!live}
            icon={held ? <Play size={15} aria-hidden="true" /> : <Hand size={15} aria-hidden="true" />}
            onClick={() => void setHold(waiting, !held)}
          >
            {t(held ? "release" : "hold")}
          </Button>
        </>
      )}
      <Button size="small" look="danger" disabled={!live || sessions.every(hasEnded)} onClick={onEnd}>
        {t("end")}…
      </Button>
      {naming && <PriorityDialog sessions={waiting} onClose={() => setNaming(false)} />}
    </div>
  );
}

function PriorityDialog({ sessions, onClose }: { sessions: readonly Session[]; onClose: () => void }) {
  const [text, setText] = useState(String(sessions[0]?.spec?.priority ?? 10));
  const priority = Number(text);
  const bad = text.trim() === "" || !Number.isInteger(priority) || priority < 0 || priority > 100;
  return (
    <Dialog
      title={t("priorityTitle", { count: sessions.length })}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button look="primary" type="submit" form="set-priority" disabled={bad}>
            {t("save")}
          </Button>
        </>
      }
    >
      <form
        id="set-priority"
        onSubmit={(event) => {
          event.preventDefault();
          if (bad) return;
          void setPriority(sessions, priority);
          onClose();
        }}
      >
        <TextField
          label={t("priority")}
          help={t("priorityMeans")}
          error={bad ? t("priorityMeans") : undefined}
          inputMode="numeric"
          value={text}
          onChange={setText}
        />
      </form>
    </Dialog>
  );
}
