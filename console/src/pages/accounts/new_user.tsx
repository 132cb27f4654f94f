import { useState } from "react";
import { accounts } from "../../api/client";
import { Choice } from "../../design/choice";
import { Combobox, Select, TextField } from "../../design/fields";
import { notify } from "../../design/notify";
import { ProjectRole, UserRole } from "../../gen/retinue/manager/v1/account_service_pb";
import { FormDialog } from "../../parts/form_dialog";
import { t } from "../../text/administration";

/** Makes a user, with memberships. */
export function NewUser({
  projects,
  onClose,
  onDone,
}: {
  projects: readonly string[];
  onClose: () => void;
  onDone: (name: string) => void;
}) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<"user" | "admin">("user");
  const [chosen, setChosen] = useState<string[]>([]);
  const [projectRole, setProjectRole] = useState<"member" | "admin">("member");
  const create = async () => {
    const inProject = projectRole === "admin" ? ProjectRole.ADMIN : ProjectRole.MEMBER;
    await accounts.createUser({
      user: {
        name: name.trim(),
        role: role === "admin" ? UserRole.ADMIN : UserRole.USER,
        memberships: chosen.map((project) => ({ project, role: inProject })),
      },
    });
    notify(t("userMade", { name: name.trim() }));
    onDone(name.trim());
  };
  return (
    <FormDialog title={t("newUser")} action={t("create")} onSubmit={create} onClose={onClose} onDone={() => undefined}>
      {(error) => (
        <>
          <TextField
            label={t("name")}
            help={t("nameHelp")}
            required
            value={name}
            onChange={setName}
            error={error("user.name")}
          />
          <div className="flex flex-col gap-1">
            <Choice
              label={t("role")}
              value={role}
              onChange={setRole}
              options={[
                { value: "user", label: t("ordinaryUser") },
                { value: "admin", label: t("administrator") },
              ]}
            />
            <p className="text-xs text-quiet">{t(role === "admin" ? "administratorMeans" : "ordinaryUserMeans")}</p>
          </div>
          {projects.length > 0 && (
            <div className="grid gap-4 sm:grid-cols-[1fr_10rem]">
              <Combobox
                label={t("projects")}
                value={chosen}
                onChange={setChosen}
                placeholder={t("choose")}
                error={error("user.memberships")}
                options={projects.map((value) => ({ value, label: value }))}
              />
              <Select
                label={t("roleThere")}
                value={projectRole}
                onChange={setProjectRole}
                options={[
                  { value: "member", label: t("projectMember") },
                  { value: "admin", label: t("projectAdmin") },
                ]}
              />
            </div>
          )}
        </>
      )}
    </FormDialog>
  );
}
