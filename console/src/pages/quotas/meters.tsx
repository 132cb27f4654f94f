import { Meter } from "../../design/meter";
import type { Quota } from "../../gen/retinue/manager/v1/account_service_pb";
import { t } from "../../text/administration";
import { amount, amountText, COMMON_SLOTS } from "../../text/format";

/** Each limit of a quota, with what counts against it now. */
export function QuotaMeters({ quota }: { quota: Quota }) {
  const counts: [string, number, number | undefined][] = [
    [t("sessions"), quota.usage?.sessions ?? 0, quota.maxSessions],
    [t("waitingSessions"), quota.usage?.pendingSessions ?? 0, quota.maxPendingSessions],
  ];
  return (
    <div className="meters grid grid-cols-[repeat(auto-fill,minmax(min(100%,13rem),1fr))] gap-x-6 gap-y-2">
      {slotsInOrder(quota.slots).map((slot) => {
        const [used, all] = [amount(quota.usage?.slots[slot] ?? "0"), amount(quota.slots[slot] ?? "0")];
        return (
          <Meter
            key={slot}
            label={slot}
            used={used}
            limit={all}
            words={t("usedOf", { used: amountText(slot, used), all: amountText(slot, all) })}
          />
        );
      })}
      {counts.map(
        ([name, used, limit]) =>
          limit !== undefined && (
            <Meter
              key={name}
              label={name}
              used={used}
              limit={limit}
              words={t("usedOf", { used: String(used), all: String(limit) })}
            />
          ),
      )}
      {quota.highestPriority !== undefined && (
        <p className="text-sm">
          <span className="font-medium">{t("highestPriority")}</span> {quota.highestPriority}
        </p>
      )}
      {quota.maxSystemSessions !== undefined && (
        <p className="text-sm">
          <span className="font-medium">{t("maxSystem")}</span> {quota.maxSystemSessions}
        </p>
      )}
    </div>
  );
}

function slotsInOrder(slots: Record<string, string>): string[] {
  const rank = (slot: string) => (COMMON_SLOTS.includes(slot) ? COMMON_SLOTS.indexOf(slot) : COMMON_SLOTS.length);
  return Object.keys(slots).sort((one, other) => rank(one) - rank(other) || one.localeCompare(other));
}
