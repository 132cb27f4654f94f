import { useState } from "react";
import { fleet } from "../../api/fleet";
import { Checkbox, Select, TextArea, TextField } from "../../design/fields";
import { notify, notifyProblem } from "../../design/notify";
import { Tabs } from "../../design/tabs";
import type { ResourceGroup } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { type FieldError, FormDialog } from "../../parts/form_dialog";
import { t } from "../../text/administration";
import {
  changedPaths,
  formOf,
  type GroupForm,
  groupChanges,
  groupOf,
  ISOLATIONS,
  PREEMPTION_ORDERS,
  PREEMPTIONS,
  PULLS,
  TYPES,
  word,
} from "./form";
import { IdleFields } from "./idle_fields";

type Part = "scheduling" | "idle" | "takes" | "mounts" | "loss";

interface Fields {
  form: GroupForm;
  put: (change: Partial<GroupForm>) => void;
  error: FieldError;
}

const SCHEDULING = "resource_group.scheduling_policy";

/** Makes a resource group, or changes the policies of one. */
export function GroupEditor({
  group,
  blank,
  onClose,
  onDone,
}: {
  /** The one to be changed; none makes one. */
  group: ResourceGroup | undefined;
  /** What a new one begins as. */
  blank: ResourceGroup;
  onClose: () => void;
  onDone: () => void;
}) {
  const before = formOf(group ?? blank);
  const [form, setForm] = useState(before);
  const [part, setPart] = useState<Part>("scheduling");
  const put = (change: Partial<GroupForm>) => setForm({ ...form, ...change });
  const save = async () => {
    const resourceGroup = groupOf(form, group);
    if (group === undefined) {
      await fleet.createResourceGroup({ resourceGroup });
      onDone();
      notify(t("groupMade", { name: resourceGroup.name }));
      return;
    }
    const paths = changedPaths(before, form);
    await fleet.updateResourceGroup({ resourceGroup, updateMask: { paths } });
    onDone();
    const back = { resourceGroup: { ...group, etag: "" }, updateMask: { paths } };
    notify(t("groupChanged", { name: group.name }), {
      undo: () => void fleet.updateResourceGroup(back).then(onDone, (error) => notifyProblem(t("failed"), error)),
    });
  };
  return (
    <FormDialog
      title={group === undefined ? t("newGroup") : t("editGroup", { name: group.name })}
      action={t(group === undefined ? "create" : "save")}
      {...(group !== undefined && { changes: groupChanges(before, form) })}
      onSubmit={save}
      onClose={onClose}
      wide
    >
      {(error) => {
        const fields = { form, put, error };
        return (
          <>
            {group === undefined && (
              <TextField
                label={t("name")}
                help={t("nameHelp")}
                required
                value={form.name}
                onChange={(name) => put({ name })}
                error={error("resource_group.name")}
              />
            )}
            <Tabs<Part>
              label={t("groups")}
              selected={part}
              onSelect={setPart}
              items={[
                { id: "scheduling", label: t("scheduling") },
                { id: "idle", label: t("idlePolicy") },
                { id: "takes", label: t("whatItTakes") },
                { id: "mounts", label: t("mounts") },
                { id: "loss", label: t("lossAndWeights") },
              ]}
            >
              {part === "scheduling" && <Scheduling {...fields} />}
              {part === "idle" && (
                <>
                  <p className="pb-3 text-quiet">{t("idleMeans")}</p>
                  <IdleFields
                    form={form.idle}
                    put={(change) => put({ idle: { ...form.idle, ...change } })}
                    path="resource_group.idle_policy"
                    error={error}
                  />
                </>
              )}
              {part === "takes" && <Takes {...fields} />}
              {part === "mounts" && (
                <TextArea
                  label={t("mountRoots")}
                  help={t("mountRootsHelp", { user: "{user}", project: "{project}" })}
                  mono
                  rows={6}
                  value={form.mounts}
                  onChange={(mounts) => put({ mounts })}
                  error={error("resource_group.mount_roots")}
                />
              )}
              {part === "loss" && <Loss {...fields} />}
            </Tabs>
          </>
        );
      }}
    </FormDialog>
  );
}

const ORDERS = ["drf", "fairShare", "fifo", "lifo", "external", "custom"] as const;
const PACKINGS = ["concentrated", "dispersed", "roundRobin", "external", "custom"] as const;
const GRID = "grid gap-4 sm:grid-cols-2";

function options<T extends string>(values: readonly T[]): { value: T; label: string }[] {
  return values.map((value) => ({ value, label: word(value) }));
}

function Scheduling({ form, put, error }: Fields) {
  const external = form.order === "external" || form.packing === "external";
  return (
    <div className={GRID}>
      <Select
        label={t("sessionOrder")}
        value={form.order}
        onChange={(order) => put({ order })}
        options={options(ORDERS)}
        error={error(`${SCHEDULING}.session_strategy.custom.options`)}
      />
      <Select
        label={t("nodeOrder")}
        value={form.packing}
        onChange={(packing) => put({ packing })}
        options={options(PACKINGS)}
        error={error(`${SCHEDULING}.agent_strategy.custom.options`)}
      />
      {form.order === "fifo" && (
        <TextField
          label={t("skipAfter")}
          help={t("skipAfterHelp")}
          inputMode="numeric"
          value={form.skipAfter}
          onChange={(skipAfter) => put({ skipAfter })}
          error={error(`${SCHEDULING}.session_strategy.fifo`)}
        />
      )}
      {form.order === "fairShare" && (
        <>
          <TextField
            label={t("halfLife")}
            help={t("halfLifeHelp")}
            value={form.halfLife}
            onChange={(halfLife) => put({ halfLife })}
            error={error(`${SCHEDULING}.session_strategy.fair_share.half_life`)}
          />
          <TextField
            label={t("lookBack")}
            help={t("lookBackHelp")}
            value={form.lookBack}
            onChange={(lookBack) => put({ lookBack })}
            error={error(`${SCHEDULING}.session_strategy.fair_share.look_back`)}
          />
        </>
      )}
      {form.order === "custom" && (
        <TextField
          label={t("pluginName")}
          value={form.orderName}
          onChange={(orderName) => put({ orderName })}
          error={error(`${SCHEDULING}.session_strategy.custom.name`)}
        />
      )}
      {form.packing === "custom" && (
        <TextField
          label={t("pluginNameNodes")}
          value={form.packingName}
          onChange={(packingName) => put({ packingName })}
          error={error(`${SCHEDULING}.agent_strategy.custom.name`)}
        />
      )}
      {form.packing !== "roundRobin" && (
        <TextField
          label={t("slotPriority")}
          help={t("slotPriorityHelp")}
          value={form.slotPriority}
          onChange={(slotPriority) => put({ slotPriority })}
          error={error(`${SCHEDULING}.agent_strategy.${form.packing}.slot_priority`)}
        />
      )}
      {external && (
        <>
          <TextField
            label={t("serverAddress")}
            help="HOST:PORT, unix:/PATH"
            value={form.server}
            onChange={(server) => put({ server })}
            error={error(`${SCHEDULING}.external_server.address`) ?? error(`${SCHEDULING}.external_server`)}
          />
          <TextField
            label={t("serverDeadline")}
            help={t("serverDeadlineHelp")}
            value={form.serverDeadline}
            onChange={(serverDeadline) => put({ serverDeadline })}
            error={error(`${SCHEDULING}.external_server.deadline`)}
          />
        </>
      )}
      <TextField
        label={t("reserveAfter")}
        help={t("reserveAfterHelp")}
        value={form.reserveAfter}
        onChange={(reserveAfter) => put({ reserveAfter })}
        error={error(`${SCHEDULING}.reservation.after`) ?? error(`${SCHEDULING}.reservation`)}
      />
      <TextField
        label={t("reserveTries")}
        inputMode="numeric"
        value={form.reserveTries}
        onChange={(reserveTries) => put({ reserveTries })}
        error={error(`${SCHEDULING}.reservation.after_tries`)}
      />
      <Select
        label={t("preemption")}
        value={form.preemption}
        onChange={(preemption) => put({ preemption })}
        options={options(PREEMPTIONS)}
        error={error(`${SCHEDULING}.preemption.mode`)}
      />
      {form.preemption !== "OFF" && (
        <>
          <Select
            label={t("preemptionOrder")}
            value={form.preemptionOrder}
            onChange={(preemptionOrder) => put({ preemptionOrder })}
            options={options(PREEMPTION_ORDERS)}
            error={error(`${SCHEDULING}.preemption.order`)}
          />
          <TextField
            label={t("preemptionHold")}
            help={t("durationHelp")}
            value={form.hold}
            onChange={(hold) => put({ hold })}
            error={error(`${SCHEDULING}.preemption.hold`)}
          />
          <TextField
            label={t("minRuntime")}
            help={t("durationHelp")}
            value={form.minRuntime}
            onChange={(minRuntime) => put({ minRuntime })}
            error={error(`${SCHEDULING}.preemption.min_runtime`)}
          />
        </>
      )}
      <TextField
        label={t("pendingTimeout")}
        help={t("pendingTimeoutHelp")}
        value={form.pendingTimeout}
        onChange={(pendingTimeout) => put({ pendingTimeout })}
        error={error(`${SCHEDULING}.pending_timeout`)}
      />
      <TextField
        label={t("maxKernels")}
        help={t("maxKernelsHelp")}
        inputMode="numeric"
        value={form.maxKernels}
        onChange={(maxKernels) => put({ maxKernels })}
        error={error(`${SCHEDULING}.max_kernels_per_agent`)}
      />
    </div>
  );
}

/** Any number of a few; none of them is all. */
function Some({
  label,
  values,
  chosen,
  onChange,
  error,
}: {
  label: string;
  values: readonly string[];
  chosen: readonly string[];
  onChange: (chosen: string[]) => void;
  error: string | undefined;
}) {
  return (
    <fieldset className="flex flex-col gap-1.5">
      <legend className="mb-1 text-sm font-medium">{label}</legend>
      {values.map((value) => (
        <Checkbox
          key={value}
          label={word(value)}
          checked={chosen.includes(value)}
          onChange={(on) => onChange(values.filter((each) => (each === value ? on : chosen.includes(each))))}
        />
      ))}
      <p className={error === undefined ? "text-xs text-quiet" : "text-xs text-bad"}>{error ?? t("noneIsAll")}</p>
    </fieldset>
  );
}

function Takes({ form, put, error }: Fields) {
  const unset = { value: "", label: t("notSet") };
  return (
    <div className={GRID}>
      <Some
        label={t("sessionTypes")}
        values={TYPES}
        chosen={form.types}
        onChange={(types) => put({ types })}
        error={error("resource_group.session_types")}
      />
      <Some
        label={t("isolations")}
        values={ISOLATIONS}
        chosen={form.isolations}
        onChange={(isolations) => put({ isolations })}
        error={error("resource_group.isolations")}
      />
      <Select
        label={t("defaultIsolation")}
        value={form.isolation}
        onChange={(isolation) => put({ isolation })}
        options={[unset, ...options(ISOLATIONS)]}
        error={error("resource_group.default_isolation")}
      />
      <Select
        label={t("pullPolicy")}
        value={form.pull}
        onChange={(pull) => put({ pull })}
        options={[unset, ...options(PULLS)]}
        error={error("resource_group.default_pull_policy")}
      />
      <Select
        label={t("egress")}
        value={form.egress}
        onChange={(egress) => put({ egress })}
        options={options(["allow", "deny"])}
        error={error("resource_group.egress")}
      />
      <div className="grid grid-cols-2 gap-4">
        <TextField
          label={t("startTimeout")}
          help={t("durationHelp")}
          value={form.startTimeout}
          onChange={(startTimeout) => put({ startTimeout })}
          error={error("resource_group.start_timeout")}
        />
        <TextField
          label={t("maxGrace")}
          help={t("durationHelp")}
          value={form.maxGrace}
          onChange={(maxGrace) => put({ maxGrace })}
          error={error("resource_group.max_grace")}
        />
      </div>
      <TextArea
        label={t("registries")}
        help={t("registriesHelp")}
        mono
        rows={4}
        className="sm:col-span-2"
        value={form.registries}
        onChange={(registries) => put({ registries })}
        error={error("resource_group.image_registries")}
      />
    </div>
  );
}

function Loss({ form, put, error }: Fields) {
  return (
    <div className="flex flex-col gap-4">
      <p className="text-quiet">{t("lossMeans")}</p>
      <div className="grid gap-4 sm:grid-cols-3">
        <TextField
          label={t("lossPercent")}
          inputMode="numeric"
          value={form.lossPercent}
          onChange={(lossPercent) => put({ lossPercent })}
          error={error("resource_group.mass_loss_percent")}
        />
        <TextField
          label={t("lossAgents")}
          inputMode="numeric"
          value={form.lossAgents}
          onChange={(lossAgents) => put({ lossAgents })}
          error={error("resource_group.mass_loss_agents")}
        />
        <TextField
          label={t("lossWindow")}
          help={t("durationHelp")}
          value={form.lossWindow}
          onChange={(lossWindow) => put({ lossWindow })}
          error={error("resource_group.mass_loss_window")}
        />
      </div>
      <TextArea
        label={t("weights")}
        help={t("weightsHelp")}
        mono
        rows={4}
        value={form.weights}
        onChange={(weights) => put({ weights })}
        error={error("resource_group.owner_weights")}
      />
    </div>
  );
}
