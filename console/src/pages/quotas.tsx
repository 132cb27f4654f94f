import { accounts, allPages } from "../api/client";
import { QuotaKind } from "../gen/retinue/manager/v1/account_service_pb";
import { Meter, Table, Trouble } from "../parts/basics";
import { useLoaded } from "../parts/store";
import { amount, amountText } from "../text/format";
import { t } from "../text/language";

/** Limits and what is used of them, side by side. */
export default function Quotas() {
  const found = useLoaded(
    "quotas",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await accounts.listQuotas({ pageToken }, { signal });
        return { items: page.quotas, nextPageToken: page.nextPageToken };
      }),
    10,
  );
  return (
    <>
      <h1>{t("quotas")}</h1>
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value?.length === 0 && <p className="note">{t("none")}</p>}
      <Table
        label={t("quotas")}
        head={[t("type"), t("name"), t("quota")]}
        rows={(found.value ?? []).map((quota) => ({
          key: `${quota.kind} ${quota.name}`,
          cells: [
            (QuotaKind[quota.kind] ?? "").toLowerCase().replaceAll("_", " "),
            quota.name,
            <div key="meters" className="meters">
              {Object.entries(quota.slots).map(([slot, limit]) => (
                <Meter
                  key={slot}
                  used={amount(quota.usage?.slots[slot] ?? "0")}
                  limit={amount(limit)}
                  words={`${slot} ${amountText(slot, amount(quota.usage?.slots[slot] ?? "0"))} ${t("used")} / ${amountText(slot, amount(limit))} ${t("limit")}`}
                />
              ))}
              {quota.maxSessions !== undefined && (
                <Meter
                  used={quota.usage?.sessions ?? 0}
                  limit={quota.maxSessions}
                  words={`${t("sessions")} ${quota.usage?.sessions ?? 0} ${t("used")} / ${quota.maxSessions} ${t("limit")}`}
                />
              )}
              {quota.maxPendingSessions !== undefined && (
                <Meter
                  used={quota.usage?.pendingSessions ?? 0}
                  limit={quota.maxPendingSessions}
                  words={`${t("waiting")} ${quota.usage?.pendingSessions ?? 0} ${t("used")} / ${quota.maxPendingSessions} ${t("limit")}`}
                />
              )}
            </div>,
          ],
        }))}
      />
    </>
  );
}
