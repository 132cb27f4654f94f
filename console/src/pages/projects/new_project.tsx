import { useState } from "react";
import { accounts } from "../../api/client";
import { TextField } from "../../design/fields";
import { notify } from "../../design/notify";
import { FormDialog } from "../../parts/form_dialog";
import { t } from "../../text/administration";

export function NewProject({ onClose, onDone }: { onClose: () => void; onDone: (name: string) => void }) {
  const [name, setName] = useState("");
  const create = async () => {
    await accounts.createProject({ project: { name: name.trim() } });
    notify(t("projectMade", { name: name.trim() }));
    onDone(name.trim());
  };
  return (
    <FormDialog
      title={t("newProject")}
      action={t("create")}
      onSubmit={create}
      onClose={onClose}
      onDone={() => undefined}
    >
      {(error) => (
        <TextField
          label={t("name")}
          help={t("nameHelp")}
          required
          value={name}
          onChange={setName}
          error={error("project.name")}
        />
      )}
    </FormDialog>
  );
}
