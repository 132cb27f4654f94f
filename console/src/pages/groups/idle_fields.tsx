import { Select, TextField } from "../../design/fields";
import type { FieldError } from "../../parts/form_dialog";
import { t } from "../../text/administration";
import type { IdleForm } from "./idle";

/** The fields of an idle policy. `path` is where it is in the request. */
export function IdleFields({
  form,
  put,
  path,
  error,
}: {
  form: IdleForm;
  put: (change: Partial<IdleForm>) => void;
  path: string;
  error: FieldError;
}) {
  return (
    <div className="grid gap-4 sm:grid-cols-2">
      <TextField
        label={t("idleInteraction")}
        help={t("idleInteractionHelp")}
        value={form.interaction}
        onChange={(interaction) => put({ interaction })}
        error={error(`${path}.interaction_timeout`)}
      />
      <TextField
        label={t("idleLifetime")}
        help={t("idleLifetimeHelp")}
        value={form.lifetime}
        onChange={(lifetime) => put({ lifetime })}
        error={error(`${path}.max_lifetime`)}
      />
      <TextField
        label={t("idleWindow")}
        help={t("idleWindowHelp")}
        value={form.window}
        onChange={(window) => put({ window })}
        error={error(`${path}.utilization.window`)}
      />
      <div className="grid grid-cols-2 gap-4">
        <TextField
          label={t("idleCpu")}
          help="%"
          inputMode="decimal"
          value={form.cpu}
          onChange={(cpu) => put({ cpu })}
          error={error(`${path}.utilization.thresholds['cpu']`)}
        />
        <TextField
          label={t("idleMem")}
          help="%"
          inputMode="decimal"
          value={form.mem}
          onChange={(mem) => put({ mem })}
          error={error(`${path}.utilization.thresholds['mem']`) ?? error(`${path}.utilization.thresholds`)}
        />
      </div>
      <Select
        label={t("idleOperator")}
        value={form.operator}
        onChange={(operator) => put({ operator })}
        error={error(`${path}.utilization.operator`)}
        options={[
          { value: "", label: t("notSet") },
          { value: "all", label: t("ofAllSlots") },
          { value: "any", label: t("ofAnySlot") },
        ]}
      />
      <Select
        label={t("idleJoin")}
        value={form.join}
        onChange={(join) => put({ join })}
        error={error(`${path}.join`)}
        options={[
          { value: "", label: t("notSet") },
          { value: "all", label: t("together") },
          { value: "any", label: t("eachByItself") },
        ]}
      />
      <TextField
        label={t("idleGrace")}
        help={t("idleGraceHelp")}
        value={form.grace}
        onChange={(grace) => put({ grace })}
        error={error(`${path}.grace_period`)}
      />
      <TextField
        label={t("idleWarning")}
        help={t("idleWarningHelp")}
        value={form.warning}
        onChange={(warning) => put({ warning })}
        error={error(`${path}.warning`)}
      />
      <TextField
        label={t("idleExtension")}
        help={t("idleExtensionHelp")}
        value={form.extension}
        onChange={(extension) => put({ extension })}
        error={error(`${path}.max_extension`)}
      />
    </div>
  );
}
