import { useState } from "react";
import { accounts } from "../../api/client";
import { Button } from "../../design/button";
import { ConfirmDialog, Sheet } from "../../design/dialog";
import { notify } from "../../design/notify";
import { type Project, type Quota, QuotaKind } from "../../gen/retinue/manager/v1/account_service_pb";
import { t } from "../../text/administration";
import { moment } from "../../text/format";
import { type Member, Members } from "../accounts/members";
import { QuotaDialog } from "../quotas/dialog";
import { QuotaMeters } from "../quotas/meters";

/** A project: its members, for administrators, and its quota. */
export function ProjectSheet({
  project,
  admin,
  quota,
  members,
  users,
  onClose,
  onDone,
}: {
  project: Project;
  admin: boolean;
  quota: Quota | undefined;
  members: readonly Member[] | undefined;
  users: readonly string[];
  onClose: () => void;
  onDone: () => void;
}) {
  const [asked, setAsked] = useState<"quota" | "delete">();
  const close = () => setAsked(undefined);
  return (
    <Sheet title={project.name} onClose={onClose}>
      <div className="flex items-center gap-2">
        <span className="grow text-sm text-quiet">{t("madeAt", { time: moment(project.createTime) })}</span>
        {admin && (
          <Button size="small" look="danger" onClick={() => setAsked("delete")}>
            {t("delete")}
          </Button>
        )}
      </div>
      <section className="flex flex-col gap-2">
        <div className="flex items-center gap-2">
          <h3 className="grow">{t("quota")}</h3>
          {admin && (
            <Button size="small" onClick={() => setAsked("quota")}>
              {t(quota ? "edit" : "setQuota")}
            </Button>
          )}
        </div>
        {quota ? <QuotaMeters quota={quota} /> : <p className="text-quiet">{t("noQuotaOf")}</p>}
      </section>
      {members !== undefined && (
        <section className="flex flex-col gap-2 border-t border-line pt-3">
          <h3>{t("members")}</h3>
          <Members members={members} side="user" fixed={project.name} more={users} admin={admin} onDone={onDone} />
        </section>
      )}
      {asked === "quota" && (
        <QuotaDialog owner={{ kind: QuotaKind.PROJECT, name: project.name }} onClose={close} onDone={onDone} />
      )}
      {asked === "delete" && (
        <ConfirmDialog
          title={t("deleteProjectQuestion", { name: project.name })}
          action={t("delete")}
          onClose={close}
          onConfirm={async () => {
            await accounts.deleteProject({ name: project.name });
            notify(t("projectDeleted", { name: project.name }));
            onDone();
            onClose();
          }}
        >
          <p>{t("deleteProjectMeans")}</p>
          {members !== undefined && members.length > 0 && (
            <p>{t("membersLose", { users: members.map(({ user }) => user).join(", ") })}</p>
          )}
        </ConfirmDialog>
      )}
    </Sheet>
  );
}
