import { useState } from "react";
import { accounts } from "../../api/client";
import { Checkbox } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import { IdleChecker, type IdleOverride } from "../../gen/retinue/manager/v1/idle_pb";
import { differing } from "../../parts/changes";
import { FormDialog } from "../../parts/form_dialog";
import { type Key, t } from "../../text/administration";
import { idleChanges, idleFormOf, idlePolicyOf } from "../groups/idle";
import { IdleFields } from "../groups/idle_fields";

const CHECKERS: readonly [IdleChecker, Key][] = [
  [IdleChecker.INTERACTION, "exemptInteraction"],
  [IdleChecker.UTILIZATION, "exemptUtilization"],
  [IdleChecker.LIFETIME, "exemptLifetime"],
];

export const exemptWords = (exempt: readonly IdleChecker[]) =>
  CHECKERS.filter(([checker]) => exempt.includes(checker))
    .map(([, key]) => t(key))
    .join(", ");

/** How the idle policies of resource groups differ for a user. */
export function IdleOverrideDialog({
  user,
  current,
  onClose,
  onDone,
}: {
  user: string;
  current: IdleOverride | undefined;
  onClose: () => void;
  onDone: () => void;
}) {
  const before = idleFormOf(current?.policy);
  const [form, setForm] = useState(before);
  const [exempt, setExempt] = useState<readonly IdleChecker[]>(current?.exempt ?? []);
  const save = async () => {
    const policy = idlePolicyOf("override.policy", form);
    await accounts.setIdleOverride({
      override: { user, exempt: [...exempt], etag: current?.etag ?? "", ...(policy && { policy }) },
    });
    onDone();
    const back = { user, exempt: current?.exempt ?? [], ...(current?.policy && { policy: current.policy }) };
    notify(t("idleOverrideSet", { name: user }), {
      undo: () =>
        void accounts.setIdleOverride({ override: back }).then(onDone, (error) => notifyProblem(t("failed"), error)),
    });
  };
  return (
    <FormDialog
      title={t("idleOverrideOf", { name: user })}
      action={t("save")}
      wide
      changes={[
        ...idleChanges(before, form),
        ...differing([{ label: t("exempt"), before: exemptWords(current?.exempt ?? []), after: exemptWords(exempt) }]),
      ]}
      onSubmit={save}
      onClose={onClose}
    >
      {(error) => (
        <>
          <p className="text-quiet">{t("idleOverrideMeans")}</p>
          <fieldset className="flex flex-wrap gap-x-6 gap-y-2">
            <legend className="mb-1 text-sm font-medium">{t("exempt")}</legend>
            {CHECKERS.map(([checker, key]) => (
              <Checkbox
                key={checker}
                label={t(key)}
                checked={exempt.includes(checker)}
                onChange={(on) => setExempt(on ? [...exempt, checker] : exempt.filter((other) => other !== checker))}
              />
            ))}
          </fieldset>
          <IdleFields
            form={form}
            put={(change) => setForm({ ...form, ...change })}
            path="override.policy"
            error={error}
          />
        </>
      )}
    </FormDialog>
  );
}
