import { type ReactNode, useState } from "react";
import { accounts, allPages } from "../../api/client";
import { Badge } from "../../design/badge";
import { Button } from "../../design/button";
import { ConfirmDialog, Sheet } from "../../design/dialog";
import { notify } from "../../design/notify";
import { QuotaKind, type User, UserRole } from "../../gen/retinue/manager/v1/account_service_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { t } from "../../text/administration";
import { moment } from "../../text/format";
import { idleChanges, idleFormOf } from "../groups/idle";
import { QuotaDialog } from "../quotas/dialog";
import { QuotaMeters } from "../quotas/meters";
import { FileOwnerDialog } from "./file_owner";
import { exemptWords, IdleOverrideDialog } from "./idle_override";
import { Keys } from "./keys";
import { Members } from "./members";
import { Tokens } from "./tokens";

/** All that an administrator can change of a user. */
export function UserSheet({
  user,
  self,
  projects,
  onClose,
  onDone,
}: {
  user: User;
  self: boolean;
  projects: readonly string[];
  onClose: () => void;
  onDone: () => void;
}) {
  const [asked, setAsked] = useState<"quota" | "idle" | "owner" | "role" | "delete">();
  const quota = useLoaded(`quota of ${user.name}`, async (signal) => {
    const { quotas } = await accounts.listQuotas({ kind: QuotaKind.USER, name: user.name }, { signal });
    return { quota: quotas[0] };
  });
  const overrides = useLoaded(`idle overrides of ${user.name}`, (signal) =>
    allPages(async (pageToken) => {
      const page = await accounts.listIdleOverrides({ pageToken, pageSize: 500 }, { signal });
      return { items: page.overrides, nextPageToken: page.nextPageToken };
    }),
  );
  const override = overrides.value?.find((each) => each.user === user.name);
  const admin = user.role === UserRole.ADMIN;
  const close = () => setAsked(undefined);
  const limits = quota.value?.quota;
  return (
    <Sheet title={user.name} onClose={onClose}>
      <div className="flex flex-wrap items-center gap-2">
        <Badge tone={admin ? "accent" : "neutral"}>{t(admin ? "administrator" : "ordinaryUser")}</Badge>
        <span className="grow text-sm text-quiet">{t("madeAt", { time: moment(user.createTime) })}</span>
        {!self && (
          <Button size="small" onClick={() => setAsked("role")}>
            {t(admin ? "takeAdministrator" : "giveAdministrator")}
          </Button>
        )}
        {!self && (
          <Button size="small" look="danger" onClick={() => setAsked("delete")}>
            {t("delete")}
          </Button>
        )}
      </div>
      <Part title={t("projects")}>
        <Members
          members={user.memberships.map(({ project, role }) => ({ user: user.name, project, role }))}
          side="project"
          fixed={user.name}
          more={projects}
          admin
          onDone={onDone}
        />
      </Part>
      <Part title={t("quota")} action={t(limits ? "edit" : "setQuota")} onAction={() => setAsked("quota")}>
        <Trouble problem={quota.problem} retry={quota.reload} />
        {limits ? <QuotaMeters quota={limits} /> : <p className="text-quiet">{t("noQuotaOf")}</p>}
      </Part>
      <Part title={t("idlePolicy")} action={t(override ? "edit" : "setIdleOverride")} onAction={() => setAsked("idle")}>
        <Trouble problem={overrides.problem} retry={overrides.reload} />
        {override ? (
          <ul className="text-sm">
            {override.exempt.length > 0 && (
              <li>
                {t("exempt")}: {exemptWords(override.exempt)}
              </li>
            )}
            {idleChanges(idleFormOf(undefined), idleFormOf(override.policy)).map(({ label, after }) => (
              <li key={label}>
                {label}: {after}
              </li>
            ))}
          </ul>
        ) : (
          <p className="text-quiet">{t("noIdleOverride")}</p>
        )}
      </Part>
      <Part title={t("fileOwner")} action={t("edit")} onAction={() => setAsked("owner")}>
        <p className="text-quiet tabular-nums">
          {user.fileOwner
            ? t("fileOwnerWords", { uid: String(user.fileOwner.uid), gid: String(user.fileOwner.gid) })
            : t("noFileOwner")}
        </p>
      </Part>
      <Tokens user={user.name} own={self} />
      <Keys user={user.name} own={self} />
      {asked === "quota" && (
        <QuotaDialog owner={{ kind: QuotaKind.USER, name: user.name }} onClose={close} onDone={quota.reload} />
      )}
      {asked === "idle" && (
        <IdleOverrideDialog user={user.name} current={override} onClose={close} onDone={overrides.reload} />
      )}
      {asked === "owner" && <FileOwnerDialog user={user} onClose={close} onDone={onDone} />}
      {asked === "role" && (
        <ConfirmDialog
          title={t(admin ? "takeAdministratorQuestion" : "giveAdministratorQuestion", { name: user.name })}
          action={t(admin ? "takeAdministrator" : "giveAdministrator")}
          onClose={close}
          onConfirm={async () => {
            await accounts.setUserRole({ user: user.name, role: admin ? UserRole.USER : UserRole.ADMIN });
            notify(t(admin ? "administratorTaken" : "administratorGiven", { name: user.name }));
            onDone();
          }}
        >
          <p>{t(admin ? "takeAdministratorMeans" : "giveAdministratorMeans")}</p>
        </ConfirmDialog>
      )}
      {asked === "delete" && (
        <ConfirmDialog
          title={t("deleteUserQuestion", { name: user.name })}
          action={t("delete")}
          onClose={close}
          onConfirm={async () => {
            await accounts.deleteUser({ name: user.name });
            notify(t("userDeleted", { name: user.name }));
            onDone();
            onClose();
          }}
        >
          <p>{t("deleteUserMeans")}</p>
        </ConfirmDialog>
      )}
    </Sheet>
  );
}

function Part({
  title,
  action,
  onAction,
  children,
}: {
  title: string;
  action?: string;
  onAction?: () => void;
  children: ReactNode;
}) {
  return (
    <section className="flex flex-col gap-2 border-t border-line pt-3">
      <div className="flex items-center gap-2">
        <h3 className="grow">{title}</h3>
        {action !== undefined && (
          <Button size="small" onClick={onAction}>
            {action}
            <span className="sr-only"> {title}</span>
          </Button>
        )}
      </div>
      {children}
    </section>
  );
}
