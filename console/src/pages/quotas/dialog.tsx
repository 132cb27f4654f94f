import { useState } from "react";
import { accounts } from "../../api/client";
import { Choice } from "../../design/choice";
import { ConfirmDialog } from "../../design/dialog";
import { Select, TextField } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import { Skeleton } from "../../design/states";
import { type Quota, QuotaKind } from "../../gen/retinue/manager/v1/account_service_pb";
import { Trouble } from "../../parts/basics";
import { FormDialog } from "../../parts/form_dialog";
import { useLoaded } from "../../parts/store";
import { t } from "../../text/administration";
import { amount, amountText, COMMON_SLOTS } from "../../text/format";
import { type Limits, limitChanges, limitsOf, NO_LIMITS, quotaOf } from "./limits";
import { namesOf, wholeCluster } from "./load";

interface Owner {
  kind: QuotaKind;
  name: string;
}

type KindName = "user" | "project" | "group";
const KINDS: Record<KindName, QuotaKind> = {
  user: QuotaKind.USER,
  project: QuotaKind.PROJECT,
  group: QuotaKind.RESOURCE_GROUP,
};

/** Sets the limits of someone. Without `owner` it asks first whose they are. */
export function QuotaDialog({
  owner,
  onClose,
  onDone,
}: {
  owner: Owner | undefined;
  onClose: () => void;
  onDone: () => void;
}) {
  const [kindName, setKindName] = useState<KindName>("user");
  const [chosen, setChosen] = useState("");
  const kind = owner?.kind ?? KINDS[kindName];
  const name = owner?.name ?? chosen;
  const names = useLoaded(`names ${owner === undefined} ${kind}`, async (signal) =>
    owner === undefined ? namesOf(kind, signal) : [],
  );
  const current = useLoaded(`quota ${kind} ${name}`, async (signal) => {
    if (name === "") return undefined;
    const { quotas } = await accounts.listQuotas({ kind, name }, { signal });
    return { quota: quotas[0] };
  });
  const nodes = useLoaded("whole cluster", wholeCluster);
  const [typed, setTyped] = useState<{ of: string; limits: Limits }>();
  const key = `${kind} ${name}`;
  const before = limitsOf(current.value?.quota);
  const limits = typed?.of === key ? typed.limits : before;
  const put = (change: Partial<Limits>) => setTyped({ of: key, limits: { ...limits, ...change } });
  const known = new Set([
    ...COMMON_SLOTS,
    ...(nodes.value ?? []).flatMap(({ capacity }) => Object.keys(capacity)),
    ...Object.keys(before.slots),
  ]);
  const inAll = (slot: string) => {
    const sum = (nodes.value ?? []).reduce((all, { capacity }) => all + amount(capacity[slot] ?? "0"), 0);
    return sum > 0 ? t("nodesHave", { amount: amountText(slot, sum) }) : undefined;
  };
  const ready = name !== "" && current.value !== undefined;
  const save = async () => {
    await accounts.setQuota({ quota: quotaOf(kind, name, limits, current.value?.quota?.etag ?? "") });
    onDone();
    notify(t("quotaSet", { name }), { undo: () => void restore(kind, name, current.value?.quota, onDone) });
  };
  return (
    <FormDialog
      title={owner === undefined ? t("setQuota") : t("quotaOf", { name })}
      action={t("save")}
      changes={ready ? limitChanges(before, limits) : []}
      onSubmit={save}
      onClose={onClose}
      wide
    >
      {(error) => (
        <>
          {owner === undefined && (
            <div className="flex flex-wrap items-end gap-3">
              <Choice
                label={t("whose")}
                value={kindName}
                onChange={(value) => {
                  setKindName(value);
                  setChosen("");
                }}
                options={[
                  { value: "user", label: t("user") },
                  { value: "project", label: t("project") },
                  { value: "group", label: t("group") },
                ]}
              />
              <Select
                label={t("whose")}
                labelHidden
                className="w-64"
                value={chosen}
                placeholder={t("choose")}
                onChange={setChosen}
                error={error("quota.name")}
                options={(names.value ?? []).map((value) => ({ value, label: value }))}
              />
            </div>
          )}
          <Trouble problem={names.problem ?? current.problem} retry={current.reload} />
          {name !== "" && current.value === undefined && !current.problem && <Skeleton lines={4} />}
          {ready && (
            <>
              <p className="text-quiet">{t("quotaMeans")}</p>
              <div className="grid grid-cols-[repeat(auto-fill,minmax(min(100%,12rem),1fr))] gap-4">
                {[...known].map((slot) => (
                  <TextField
                    key={slot}
                    label={slot}
                    help={inAll(slot)}
                    placeholder={t("noLimit")}
                    value={limits.slots[slot] ?? ""}
                    onChange={(value) => put({ slots: { ...limits.slots, [slot]: value } })}
                    error={error(`quota.slots['${slot}']`)}
                  />
                ))}
                <Count
                  label={t("maxSessions")}
                  value={limits.sessions}
                  onChange={(sessions) => put({ sessions })}
                  error={error("quota.max_sessions")}
                />
                <Count
                  label={t("maxPending")}
                  value={limits.pending}
                  onChange={(pending) => put({ pending })}
                  error={error("quota.max_pending_sessions")}
                />
                <Count
                  label={t("highestPriority")}
                  value={limits.priority}
                  onChange={(priority) => put({ priority })}
                  error={error("quota.highest_priority")}
                />
                {kind === QuotaKind.USER && (
                  <Count
                    label={t("maxSystem")}
                    help={t("maxSystemHelp")}
                    value={limits.system}
                    onChange={(system) => put({ system })}
                    error={error("quota.max_system_sessions")}
                  />
                )}
              </div>
            </>
          )}
        </>
      )}
    </FormDialog>
  );
}

function Count(field: {
  label: string;
  help?: string;
  value: string;
  onChange: (value: string) => void;
  error: string | undefined;
}) {
  return <TextField {...field} inputMode="numeric" placeholder={t("noLimit")} />;
}

async function restore(kind: QuotaKind, name: string, before: Quota | undefined, onDone: () => void) {
  try {
    await accounts.setQuota({ quota: quotaOf(kind, name, limitsOf(before), "") });
    onDone();
  } catch (error) {
    notifyProblem(t("failed"), error);
  }
}

/** Takes all limits of someone away. */
export function RemoveQuotaDialog({
  quota,
  onClose,
  onDone,
}: {
  quota: Quota;
  onClose: () => void;
  onDone: () => void;
}) {
  return (
    <ConfirmDialog
      title={t("removeQuotaQuestion", { name: quota.name })}
      action={t("removeQuota")}
      onClose={onClose}
      onConfirm={async () => {
        await accounts.setQuota({ quota: quotaOf(quota.kind, quota.name, NO_LIMITS, quota.etag) });
        onDone();
        notify(t("quotaRemoved", { name: quota.name }), {
          undo: () => void restore(quota.kind, quota.name, quota, onDone),
        });
      }}
    >
      <p>{t("removeQuotaMeans")}</p>
      <ul className="list-inside list-disc">
        {limitChanges(limitsOf(quota), NO_LIMITS).map(({ label, before }) => (
          <li key={label}>
            {label}: {before}
          </li>
        ))}
      </ul>
    </ConfirmDialog>
  );
}
