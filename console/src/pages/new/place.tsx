import { useContext } from "react";
import { Card } from "../../design/card";
import { Choice } from "../../design/choice";
import { Select, TextField } from "../../design/fields";
import { ClusterMode } from "../../gen/retinue/manager/v1/session_pb";
import { Isolation } from "../../gen/retinue/types/v1/isolation_pb";
import { CallerContext } from "../../parts/caller";
import { refusalOf } from "../../spec/refusals";
import { type Key, t } from "../../text/language";
import type { SectionProps } from "./section";

const ISOLATIONS: readonly (readonly [Isolation, Key])[] = [
  [Isolation.UNSPECIFIED, "asGroup"],
  [Isolation.PROCESS, "isolationProcess"],
  [Isolation.CONTAINER, "isolationContainer"],
  [Isolation.VM, "isolationVm"],
];

/** Where it runs: on how many nodes, of which group, in which isolation. */
export function Place({ form, change, base, refusals, choices }: SectionProps) {
  const caller = useContext(CallerContext);
  const mode = form.clusterMode || base?.clusterMode || ClusterMode.SINGLE_NODE;
  const groups = choices.groups.map(({ name }) => name);
  const projects = caller.memberships.map(({ project }) => project);
  return (
    <Card title={t("stepWhere")}>
      <div className="grid grid-cols-2 gap-3">
        <div className="flex flex-col items-start gap-1">
          <span className="text-sm font-medium" aria-hidden="true">
            {t("clusterMode")}
          </span>
          <Choice
            label={t("clusterMode")}
            value={mode === ClusterMode.MULTI_NODE ? "multi" : "single"}
            onChange={(value) =>
              change({ clusterMode: value === "multi" ? ClusterMode.MULTI_NODE : ClusterMode.SINGLE_NODE })
            }
            options={[
              { value: "single", label: t("singleNode") },
              { value: "multi", label: t("multiNode") },
            ]}
          />
        </div>
        <TextField
          label={t("clusterSize")}
          error={refusalOf(refusals, "cluster_size")}
          placeholder={base !== undefined ? String(base.clusterSize || 1) : ""}
          type="number"
          min={1}
          max={1024}
          value={form.clusterSize}
          onChange={(clusterSize) => change({ clusterSize })}
        />
        <Select
          label={t("group")}
          error={refusalOf(refusals, "resource_group")}
          value={form.group || base?.resourceGroup || "default"}
          onChange={(group) => change({ group: group === "default" && base?.resourceGroup === undefined ? "" : group })}
          options={[...new Set(["default", ...groups])].map((name) => ({ value: name, label: name }))}
        />
        <Select
          label={t("isolation")}
          error={refusalOf(refusals, "kernel.isolation")}
          value={String(form.isolation || base?.kernel?.isolation || Isolation.UNSPECIFIED)}
          onChange={(isolation) => change({ isolation: Number(isolation) })}
          options={ISOLATIONS.map(([isolation, key]) => ({ value: String(isolation), label: t(key) }))}
        />
        {projects.length > 1 && (
          <Select
            label={t("project")}
            error={refusalOf(refusals, "project")}
            value={form.project}
            onChange={(project) => change({ project })}
            options={[
              { value: "", label: t("chooseProject"), disabled: true },
              ...projects.map((name) => ({ value: name, label: name })),
            ]}
          />
        )}
      </div>
    </Card>
  );
}
