import { Gauge, Plus } from "lucide-react";
import { useContext, useState } from "react";
import { useSearchParams } from "react-router";
import { Badge } from "../design/badge";
import { Button } from "../design/button";
import { Choice } from "../design/choice";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { type Quota, QuotaKind, UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { Trouble } from "../parts/basics";
import { CallerContext } from "../parts/caller";
import { t } from "../text/administration";
import { QuotaDialog, RemoveQuotaDialog } from "./quotas/dialog";
import { KIND_WORDS, useQuotas } from "./quotas/load";
import { QuotaMeters } from "./quotas/meters";

type Which = "all" | "user" | "project" | "group";
const WHICH: Record<string, QuotaKind> = {
  user: QuotaKind.USER,
  project: QuotaKind.PROJECT,
  group: QuotaKind.RESOURCE_GROUP,
};

/** Limits and what is used of them, side by side. */
export default function Quotas() {
  const admin = useContext(CallerContext).role === UserRole.ADMIN;
  const [parameters, setParameters] = useSearchParams();
  const [setting, setSetting] = useState<{ quota: Quota | undefined }>();
  const [removing, setRemoving] = useState<Quota>();
  const found = useQuotas();
  const which = (parameters.get("kind") ?? "all") as Which;
  const shown = (found.value ?? []).filter((quota) => which === "all" || quota.kind === WHICH[which]);
  return (
    <Page
      title={t("quotas")}
      lead={t("quotasLead")}
      actions={
        admin && (
          <Button
            look="primary"
            icon={<Plus size={16} aria-hidden="true" />}
            onClick={() => setSetting({ quota: undefined })}
          >
            {t("setQuota")}
          </Button>
        )
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined ? (
        !found.problem && <Skeleton lines={6} />
      ) : (
        <>
          <div>
            <Choice
              label={t("whose")}
              value={which}
              onChange={(value) => setParameters(value === "all" ? {} : { kind: value }, { replace: true })}
              options={[
                { value: "all", label: t("all") },
                { value: "user", label: t("users") },
                { value: "project", label: t("projects") },
                { value: "group", label: t("groups") },
              ]}
            />
          </div>
          {shown.length === 0 ? (
            <Empty icon={<Gauge size={32} aria-hidden="true" />} title={t("noQuotas")}>
              {t("noQuotasHelp")}
            </Empty>
          ) : (
            <ul className="quotas flex flex-col divide-y divide-line rounded-lg border border-line bg-card">
              {shown.map((quota) => (
                <li
                  key={`${quota.kind} ${quota.name}`}
                  data-quota={quota.name}
                  className="flex flex-wrap items-start gap-x-6 gap-y-3 px-4 py-3"
                >
                  <div className="flex w-52 min-w-0 flex-col items-start gap-1">
                    <h2 className="max-w-full truncate text-base" title={quota.name}>
                      {quota.name}
                    </h2>
                    <Badge>{t(KIND_WORDS[quota.kind] ?? "quota")}</Badge>
                  </div>
                  <div className="min-w-56 grow basis-72">
                    <QuotaMeters quota={quota} />
                  </div>
                  {admin && (
                    <span className="flex gap-2">
                      <Button size="small" onClick={() => setSetting({ quota })}>
                        {t("edit")}
                        <span className="sr-only"> {quota.name}</span>
                      </Button>
                      <Button size="small" look="danger" onClick={() => setRemoving(quota)}>
                        {t("removeQuota")}
                        <span className="sr-only"> {quota.name}</span>
                      </Button>
                    </span>
                  )}
                </li>
              ))}
            </ul>
          )}
        </>
      )}
      {setting && <QuotaDialog owner={setting.quota} onClose={() => setSetting(undefined)} onDone={found.reload} />}
      {removing && <RemoveQuotaDialog quota={removing} onClose={() => setRemoving(undefined)} onDone={found.reload} />}
    </Page>
  );
}
