import { create } from "@bufbuild/protobuf";
import { type Quota, QuotaKind, QuotaSchema } from "../../gen/retinue/manager/v1/account_service_pb";
import { type Change, differing, UnreadableField } from "../../parts/changes";
import { t } from "../../text/administration";

/** Limits as they are typed; an empty one is none. */
export interface Limits {
  slots: Record<string, string>;
  sessions: string;
  pending: string;
  priority: string;
  system: string;
}

export const NO_LIMITS: Limits = { slots: {}, sessions: "", pending: "", priority: "", system: "" };

const count = (value: number | undefined) => value?.toString() ?? "";

export function limitsOf(quota: Quota | undefined): Limits {
  if (quota === undefined) return NO_LIMITS;
  return {
    slots: { ...quota.slots },
    sessions: count(quota.maxSessions),
    pending: count(quota.maxPendingSessions),
    priority: count(quota.highestPriority),
    system: count(quota.maxSystemSessions),
  };
}

/** Returns the quota of what was typed. Throws UnreadableField. */
export function quotaOf(kind: QuotaKind, name: string, limits: Limits, etag: string): Quota {
  const slots = Object.fromEntries(
    Object.entries(limits.slots).flatMap(([slot, limit]) => (limit.trim() ? [[slot, limit.trim()]] : [])),
  );
  return create(QuotaSchema, {
    kind,
    name,
    slots,
    etag,
    ...optional("maxSessions", "quota.max_sessions", limits.sessions),
    ...optional("maxPendingSessions", "quota.max_pending_sessions", limits.pending),
    ...optional("highestPriority", "quota.highest_priority", limits.priority),
    ...(kind === QuotaKind.USER && optional("maxSystemSessions", "quota.max_system_sessions", limits.system)),
  });
}

function optional(name: string, field: string, text: string): Record<string, number> {
  const words = text.trim();
  if (words === "") return {};
  if (!/^\d{1,9}$/.test(words)) throw new UnreadableField(field, t("noNumber"));
  return { [name]: Number(words) };
}

/** What differs between two sets of limits, in words. */
export function limitChanges(before: Limits, after: Limits): Change[] {
  const slots = [...new Set([...Object.keys(before.slots), ...Object.keys(after.slots)])];
  return differing([
    ...slots.map((slot) => ({
      label: slot,
      before: before.slots[slot]?.trim() ?? "",
      after: after.slots[slot]?.trim() ?? "",
    })),
    { label: t("maxSessions"), before: before.sessions, after: after.sessions.trim() },
    { label: t("maxPending"), before: before.pending, after: after.pending.trim() },
    { label: t("highestPriority"), before: before.priority, after: after.priority.trim() },
    { label: t("maxSystem"), before: before.system, after: after.system.trim() },
  ]);
}
