import { Plus, X } from "lucide-react";
import { useState } from "react";
import { accounts } from "../../api/client";
import { Button, IconButton } from "../../design/button";
import { ConfirmDialog } from "../../design/dialog";
import { Select } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import { ProjectRole } from "../../gen/retinue/manager/v1/account_service_pb";
import { t } from "../../text/administration";
import { roleKey } from "./load";

export interface Member {
  user: string;
  project: string;
  role: ProjectRole;
}

type RoleName = "member" | "admin";
const ROLES: Record<RoleName, ProjectRole> = { member: ProjectRole.MEMBER, admin: ProjectRole.ADMIN };
const roleName = (role: ProjectRole): RoleName => (role === ProjectRole.ADMIN ? "admin" : "member");
const options = () => [
  { value: "member" as const, label: t("projectMember") },
  { value: "admin" as const, label: t("projectAdmin") },
];

/**
 * Memberships, of one user or of one project: `side` says which of the two is shown, and `more` what can be added.
 * A role changes at once, and can be taken back.
 */
export function Members({
  members,
  side,
  fixed,
  more,
  admin,
  onDone,
}: {
  members: readonly Member[];
  side: "user" | "project";
  /** The other side: what all of them are of. */
  fixed: string;
  more: readonly string[];
  admin: boolean;
  onDone: () => void;
}) {
  const [adding, setAdding] = useState("");
  const [role, setRole] = useState<RoleName>("member");
  const [removing, setRemoving] = useState<Member>();
  const set = async (member: Member) => {
    try {
      await accounts.setMembership(member);
      onDone();
      return true;
    } catch (error) {
      notifyProblem(t("failed"), error);
      return false;
    }
  };
  const change = async (member: Member, to: ProjectRole) => {
    if (to === member.role || !(await set({ ...member, role: to }))) return;
    notify(t("roleChanged", { user: member.user, project: member.project, role: t(roleKey(to)) }), {
      undo: () => void set(member),
    });
  };
  const add = async () => {
    const member = { user: fixed, project: fixed, [side]: adding, role: ROLES[role] };
    if (!(await set(member))) return;
    setAdding("");
    notify(t("memberAdded", { user: member.user, project: member.project }));
  };
  const addable = more.filter((name) => !members.some((member) => member[side] === name));
  return (
    <div className="flex flex-col gap-2">
      {members.length === 0 && <p className="text-quiet">{t(side === "user" ? "noMembers" : "noProjectsOfUser")}</p>}
      <ul className="members flex flex-col divide-y divide-line">
        {members.map((member) => (
          <li key={member[side]} className="flex items-center gap-3 py-1.5">
            <span className="min-w-0 grow truncate font-medium" title={member[side]}>
              {member[side]}
            </span>
            {admin ? (
              <>
                <Select
                  label={t("roleOf", { user: member.user, project: member.project })}
                  labelHidden
                  className="w-40"
                  value={roleName(member.role)}
                  onChange={(to) => void change(member, ROLES[to])}
                  options={options()}
                />
                <IconButton
                  label={t("remove", { name: member[side] })}
                  size="small"
                  onClick={() => setRemoving(member)}
                >
                  <X size={15} aria-hidden="true" />
                </IconButton>
              </>
            ) : (
              <span className="text-quiet">{t(roleKey(member.role))}</span>
            )}
          </li>
        ))}
      </ul>
      {admin && addable.length > 0 && (
        <div className="flex flex-wrap items-end gap-2">
          <Select
            label={t(side === "user" ? "addUser" : "addProject")}
            className="min-w-40 grow"
            value={adding}
            placeholder={t("choose")}
            onChange={setAdding}
            options={addable.map((value) => ({ value, label: value }))}
          />
          <Select label={t("role")} className="w-40" value={role} onChange={setRole} options={options()} />
          <Button disabled={adding === ""} icon={<Plus size={15} aria-hidden="true" />} onClick={() => void add()}>
            {t("add")}
          </Button>
        </div>
      )}
      {removing && (
        <ConfirmDialog
          title={t("removeMemberQuestion", { user: removing.user, project: removing.project })}
          action={t("removeMember")}
          onClose={() => setRemoving(undefined)}
          onConfirm={async () => {
            await accounts.deleteMembership({ user: removing.user, project: removing.project });
            onDone();
            notify(t("memberRemoved", { user: removing.user, project: removing.project }), {
              undo: () => void set(removing),
            });
          }}
        >
          <p>{t("removeMemberMeans")}</p>
        </ConfirmDialog>
      )}
    </div>
  );
}
