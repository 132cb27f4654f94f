import { useState } from "react";
import { accounts } from "../../api/client";
import { TextField } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import type { User } from "../../gen/retinue/manager/v1/account_service_pb";
import { differing, UnreadableField } from "../../parts/changes";
import { FormDialog } from "../../parts/form_dialog";
import { t } from "../../text/administration";

const count = (value: number | undefined) => (value ? String(value) : "");

/** Whom files of a user's sessions belong to on the nodes; both numbers empty is nobody. */
export function FileOwnerDialog({ user, onClose, onDone }: { user: User; onClose: () => void; onDone: () => void }) {
  const before = { uid: count(user.fileOwner?.uid), gid: count(user.fileOwner?.gid) };
  const [uid, setUid] = useState(before.uid);
  const [gid, setGid] = useState(before.gid);
  const number = (field: string, text: string) => {
    if (!/^\d{1,9}$/.test(text.trim())) throw new UnreadableField(`file_owner.${field}`, t("noNumber"));
    return Number(text);
  };
  const save = async () => {
    const empty = uid.trim() === "" && gid.trim() === "";
    await accounts.setFileOwner({
      user: user.name,
      ...(!empty && { fileOwner: { uid: number("uid", uid), gid: number("gid", gid) } }),
    });
    onDone();
    const back = { user: user.name, ...(user.fileOwner && { fileOwner: user.fileOwner }) };
    notify(t("fileOwnerSet", { name: user.name }), {
      undo: () => void accounts.setFileOwner(back).then(onDone, (error) => notifyProblem(t("failed"), error)),
    });
  };
  return (
    <FormDialog
      title={t("fileOwnerOf", { name: user.name })}
      action={t("save")}
      changes={differing([
        { label: t("uid"), before: before.uid, after: uid.trim() },
        { label: t("gid"), before: before.gid, after: gid.trim() },
      ])}
      onSubmit={save}
      onClose={onClose}
    >
      {(error) => (
        <>
          <p className="text-quiet">{t("fileOwnerMeans")}</p>
          <div className="grid grid-cols-2 gap-4">
            <TextField
              label={t("uid")}
              inputMode="numeric"
              value={uid}
              onChange={setUid}
              error={error("file_owner.uid")}
            />
            <TextField
              label={t("gid")}
              inputMode="numeric"
              value={gid}
              onChange={setGid}
              error={error("file_owner.gid")}
            />
          </div>
        </>
      )}
    </FormDialog>
  );
}
