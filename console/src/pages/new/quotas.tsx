import { useContext } from "react";
import { Meter } from "../../design/meter";
import { type Quota, QuotaKind } from "../../gen/retinue/manager/v1/account_service_pb";
import { CallerContext } from "../../parts/caller";
import { amount, amountText } from "../../text/format";
import { t } from "../../text/language";

/** What the caller and the project may still use. */
export function Quotas({ quotas, project }: { quotas: readonly Quota[]; project: string }) {
  const caller = useContext(CallerContext);
  // Administrators see those of others, too.
  const projects = project === "" ? caller.memberships.map((one) => one.project) : [project];
  const rows = quotas
    .filter(
      ({ kind, name }) =>
        (kind === QuotaKind.USER && name === caller.name) || (kind === QuotaKind.PROJECT && projects.includes(name)),
    )
    .flatMap((quota) =>
      Object.entries(quota.slots).map(([slot, limit]) => ({
        key: `${quota.kind} ${quota.name} ${slot}`,
        label: `${quota.name} · ${slot}`,
        slot,
        limit: amount(limit),
        used: amount(quota.usage?.slots[slot] ?? "0"),
      })),
    );
  if (rows.length === 0) return null;
  return (
    <div className="flex flex-col gap-2">
      <h3>{t("quota")}</h3>
      {rows.map(({ key, label, slot, used, limit }) => (
        <Meter
          key={key}
          label={label}
          used={used}
          limit={limit}
          words={t("quotaUsed", { used: amountText(slot, used), limit: amountText(slot, limit) })}
        />
      ))}
    </div>
  );
}
