import { type ReactNode, useContext } from "react";
import { Badge } from "../../design/badge";
import { Card } from "../../design/card";
import { Checkbox, Combobox, Select, Suggest, TextArea, TextField } from "../../design/fields";
import { Tabs } from "../../design/tabs";
import type { MountRoot } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { SessionType } from "../../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "../../live/reduce";
import { CallerContext } from "../../parts/caller";
import { useSessions } from "../../parts/store";
import { isBlank, type MountRow, type Pair, type PortRow, pairsOf } from "../../spec/form";
import { refusalOf } from "../../spec/refusals";
import { type Key, t } from "../../text/language";
import { Rows } from "./rows";
import type { SectionProps } from "./section";

export const DETAILS = ["mounts", "ports", "environment", "labels", "limits", "start"] as const;
export type Detail = (typeof DETAILS)[number];

/** Places in the spec that a tab shows. */
const PLACES: Record<Detail, readonly string[]> = {
  mounts: ["mounts"],
  ports: ["service_ports"],
  environment: ["kernel.environment"],
  labels: ["labels"],
  limits: ["priority", "time_limit", "retry", "depends_on"],
  start: ["kernel.working_directory", "bootstrap_script"],
};
/** All of them. */
export const DETAIL_PLACES = Object.values(PLACES).flat();

const NAMES: Record<Detail, Key> = {
  mounts: "mounts",
  ports: "ports",
  environment: "environment",
  labels: "labels",
  limits: "limitsAndOrder",
  start: "startOfKernels",
};

/** What a session may have besides: most have little of it, so one kind at a time is shown. */
export function Details(props: SectionProps & { selected: Detail; onSelect: (detail: Detail) => void }) {
  const { selected, onSelect, refusals } = props;
  const counts = countsOf(props);
  return (
    <Card title={t("stepBesides")}>
      <Tabs
        label={t("stepBesides")}
        className="-mt-3"
        selected={selected}
        onSelect={onSelect}
        items={DETAILS.map((id) => ({
          id,
          label: (
            <>
              {t(NAMES[id])}
              {refusalOf(refusals, ...PLACES[id]) !== undefined ? (
                <Badge tone="bad">!</Badge>
              ) : (
                counts[id] > 0 && <Badge tone="accent">{counts[id]}</Badge>
              )}
            </>
          ),
        }))}
      >
        {panel(props)}
      </Tabs>
    </Card>
  );
}

function countsOf({ form }: SectionProps): Record<Detail, number> {
  const filled = (...texts: string[]) => texts.filter((text) => text.trim() !== "").length;
  const rows = (all: readonly (Pair | MountRow | PortRow)[]) => all.filter((row) => !isBlank(row)).length;
  return {
    mounts: rows(form.mounts),
    ports: rows(form.ports),
    environment: rows(form.environment),
    labels: rows(form.labels),
    limits: filled(form.priority, form.timeLimit, form.attempts) + form.dependsOn.length,
    start: filled(form.directory, form.bootstrap),
  };
}

function panel(props: SectionProps & { selected: Detail }): ReactNode {
  const { form, change, refusals, selected } = props;
  switch (selected) {
    case "mounts":
      return <Mounts {...props} />;
    case "ports":
      return <Ports {...props} />;
    case "environment":
      return (
        <Pairs
          rows={form.environment}
          onChange={(environment) => change({ environment })}
          words={{ name: "variableAt", value: "variableValueAt", add: "addVariable" }}
          help={t("environmentHelp")}
          errorOf={(name) => refusalOf(refusals, `kernel.environment['${name}']`)}
        />
      );
    case "labels":
      return (
        <Pairs
          rows={form.labels}
          onChange={(labels) => change({ labels })}
          words={{ name: "labelAt", value: "labelValueAt", add: "addLabel" }}
          help={t("labelsHelp")}
          errorOf={(name) => refusalOf(refusals, `labels['${name}']`)}
        />
      );
    case "limits":
      return <Limits {...props} />;
    default:
      return (
        <div className="flex flex-col gap-3">
          <TextField
            label={t("workingDirectory")}
            help={t("workingDirectoryHelp")}
            error={refusalOf(refusals, "kernel.working_directory")}
            value={form.directory}
            onChange={(directory) => change({ directory })}
          />
          <TextArea
            label={t("bootstrap")}
            help={t("bootstrapHelp")}
            error={refusalOf(refusals, "bootstrap_script")}
            mono
            rows={5}
            placeholder={"#!/bin/sh\n"}
            value={form.bootstrap}
            onChange={(bootstrap) => change({ bootstrap })}
          />
        </div>
      );
  }
}

/** The place among the rows that are sent. */
function placeOf(rows: readonly (MountRow | PortRow)[], at: number): number {
  return rows.slice(0, at).filter((row) => !isBlank(row)).length;
}

function Mounts({ form, change, refusals, choices, base }: SectionProps) {
  const caller = useContext(CallerContext);
  const project = form.project || caller.memberships[0]?.project || "";
  const group = choices.groups.find(({ name }) => name === (form.group || base?.resourceGroup || "default"));
  const roots = group?.mountRoots ?? [];
  const own = (root: MountRoot) => root.path.replaceAll("{user}", caller.name).replaceAll("{project}", project);
  return (
    <Rows<MountRow>
      rows={form.mounts}
      blank={{ source: "", target: "", writable: false }}
      add={t("addMount")}
      help={
        group === undefined || roots.length > 0
          ? t("mountsHelp", { roots: roots.map(own).join(", ") })
          : t("noMountRoots", { group: group.name })
      }
      onChange={(mounts) => change({ mounts })}
    >
      {(row, at, set) => {
        const place = `mounts[${placeOf(form.mounts, at)}]`;
        const shown = !isBlank(row);
        const within = roots.find((root) => row.source.startsWith(own(root)));
        return (
          <div className="grid grid-cols-1 items-start gap-2 sm:grid-cols-[1fr_1fr_auto]">
            <Suggest
              label={t("mountSourceAt", { at: at + 1 })}
              labelHidden
              placeholder={t("mountSource")}
              suggestions={roots.map(own)}
              error={shown ? refusalOf(refusals, `${place}.source`) : undefined}
              value={row.source}
              onChange={(source) => set({ source })}
            />
            <TextField
              label={t("mountTargetAt", { at: at + 1 })}
              labelHidden
              placeholder={row.source || t("mountTarget")}
              error={shown ? refusalOf(refusals, `${place}.target`) : undefined}
              value={row.target}
              onChange={(target) => set({ target })}
            />
            <div className="flex h-8.5 items-center">
              <Checkbox
                label={t("writable")}
                checked={row.writable}
                onChange={(writable) => set({ writable })}
                {...(within?.writable === false && { help: t("readOnlyRoot") })}
              />
            </div>
          </div>
        );
      }}
    </Rows>
  );
}

function Ports({ form, change, refusals }: SectionProps) {
  return (
    <Rows<PortRow>
      rows={form.ports}
      blank={{ name: "", protocol: "http", number: "" }}
      add={t("addPort")}
      help={t("portsHelp")}
      onChange={(ports) => change({ ports })}
    >
      {(row, at, set) => {
        const place = `service_ports[${placeOf(form.ports, at)}]`;
        const shown = !isBlank(row);
        return (
          <div className="grid grid-cols-[1fr_6rem_6rem] items-start gap-2">
            <TextField
              label={t("portNameAt", { at: at + 1 })}
              labelHidden
              placeholder={t("name")}
              error={shown ? refusalOf(refusals, `${place}.name`) : undefined}
              value={row.name}
              onChange={(name) => set({ name })}
            />
            <Select
              label={t("portProtocolAt", { at: at + 1 })}
              labelHidden
              options={[
                { value: "http", label: "HTTP" },
                { value: "tcp", label: "TCP" },
              ]}
              value={row.protocol}
              onChange={(protocol) => set({ protocol })}
            />
            <TextField
              label={t("portNumberAt", { at: at + 1 })}
              labelHidden
              placeholder="8000"
              inputMode="numeric"
              error={shown ? refusalOf(refusals, `${place}.ports`) : undefined}
              value={row.number}
              onChange={(number) => set({ number })}
            />
          </div>
        );
      }}
    </Rows>
  );
}

function Pairs({
  rows,
  onChange,
  words,
  help,
  errorOf,
}: {
  rows: readonly Pair[];
  onChange: (rows: Pair[]) => void;
  words: { name: Key; value: Key; add: Key };
  help: string;
  errorOf: (name: string) => string | undefined;
}) {
  return (
    <Rows<Pair> rows={rows} blank={{ name: "", value: "" }} add={t(words.add)} help={help} onChange={onChange}>
      {(row, at, set) => (
        <div className="grid grid-cols-[2fr_3fr] items-start gap-2">
          <TextField
            label={t(words.name, { at: at + 1 })}
            labelHidden
            placeholder={t("pairName")}
            error={isBlank(row) ? undefined : errorOf(row.name.trim())}
            value={row.name}
            onChange={(name) => set({ name })}
            // The lines of a file become rows.
            onPaste={(event) => {
              const pasted = pairsOf(event.clipboardData.getData("text"));
              if (pasted.length === 0) return;
              event.preventDefault();
              onChange([...rows.filter((other, place) => place !== at && !isBlank(other)), ...pasted]);
            }}
          />
          <TextField
            label={t(words.value, { at: at + 1 })}
            labelHidden
            placeholder={t("pairValue")}
            value={row.value}
            onChange={(value) => set({ value })}
          />
        </div>
      )}
    </Rows>
  );
}

function Limits({ form, change, base, refusals }: SectionProps) {
  const sessions = useSessions();
  const batch = (form.type || base?.type) === SessionType.BATCH;
  return (
    <div className="grid grid-cols-1 gap-3 sm:grid-cols-2">
      <TextField
        label={t("timeLimit")}
        help={t("timeLimitHelp")}
        error={refusalOf(refusals, "time_limit")}
        value={form.timeLimit}
        onChange={(timeLimit) => change({ timeLimit })}
      />
      <TextField
        label={t("priority")}
        help={t("priorityRange")}
        placeholder="10"
        inputMode="numeric"
        error={refusalOf(refusals, "priority")}
        value={form.priority}
        onChange={(priority) => change({ priority })}
      />
      {batch && (
        <>
          <Combobox
            label={t("dependsOn")}
            help={t("dependsOnHelp")}
            error={refusalOf(refusals, "depends_on")}
            options={sessions
              .filter((session) => session.spec?.type === SessionType.BATCH && !hasEnded(session))
              .map((session) => ({ value: session.id, label: session.spec?.name || session.id }))}
            value={form.dependsOn}
            onChange={(dependsOn) => change({ dependsOn })}
          />
          <TextField
            label={t("attempts")}
            help={t("attemptsHelp")}
            placeholder="1"
            inputMode="numeric"
            error={refusalOf(refusals, "retry")}
            value={form.attempts}
            onChange={(attempts) => change({ attempts })}
          />
        </>
      )}
      {!batch && <p className="text-sm text-quiet sm:col-span-2">{t("onlyBatch")}</p>}
    </div>
  );
}
