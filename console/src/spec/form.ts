import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { ClusterMode, type SessionSpec, SessionSpecSchema, SessionType } from "../gen/retinue/manager/v1/session_pb";
import type { RequestChange } from "../gen/retinue/manager/v1/session_service_pb";
import { Isolation } from "../gen/retinue/types/v1/isolation_pb";
import { splitWords, UnreadableText, unreadable } from "./words";

export interface Pair {
  name: string;
  value: string;
}

export interface MountRow {
  source: string;
  target: string;
  writable: boolean;
}

export interface PortRow {
  name: string;
  protocol: "http" | "tcp";
  number: string;
}

/** What the fields of the page hold, as it was typed. */
export interface Form {
  type: SessionType;
  clusterMode: ClusterMode;
  clusterSize: string;
  name: string;
  project: string;
  group: string;
  template: string;
  image: string;
  command: string;
  directory: string;
  isolation: Isolation;
  slots: Record<string, string>;
  environment: readonly Pair[];
  mounts: readonly MountRow[];
  ports: readonly PortRow[];
  labels: readonly Pair[];
  priority: string;
  timeLimit: string;
  dependsOn: readonly string[];
  attempts: string;
  bootstrap: string;
}

export const EMPTY: Form = {
  type: SessionType.INTERACTIVE,
  clusterMode: ClusterMode.SINGLE_NODE,
  clusterSize: "1",
  name: "",
  project: "",
  group: "",
  template: "",
  image: "",
  command: "",
  directory: "",
  isolation: Isolation.UNSPECIFIED,
  slots: { cpu: "1", mem: "256m", disk: "1g" },
  environment: [],
  mounts: [],
  ports: [],
  labels: [],
  priority: "",
  timeLimit: "",
  dependsOn: [],
  attempts: "",
  bootstrap: "",
};

/** What a template has holds, until something else is written in the form. */
export function fromTemplate(form: Form, template: string): Form {
  return {
    ...form,
    template,
    type: SessionType.UNSPECIFIED,
    clusterMode: ClusterMode.UNSPECIFIED,
    clusterSize: "",
    slots: {},
  };
}

/** Takes back what `fromTemplate` left to the template. */
export function withoutTemplate(form: Form): Form {
  if (form.template === "") return form;
  const { type, clusterMode, clusterSize, slots } = EMPTY;
  return { ...form, template: "", type, clusterMode, clusterSize, slots };
}

const MILLISECONDS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns the form with a change of its request; undefined for one that this page does not know. */
export function changed(form: Form, { change }: RequestChange): Form | undefined {
  switch (change.case) {
    case "slot":
      return { ...form, slots: { ...form.slots, [change.value.slot]: change.value.amount } };
    case "clusterSize":
      return { ...form, clusterSize: String(change.value) };
    case "clusterMode":
      return { ...form, clusterMode: change.value };
    case "resourceGroup":
      return { ...form, group: change.value === "default" ? "" : change.value };
    default:
      return undefined;
  }
}

/** Why fields are refused, by their place in the spec, in the way in which the server writes such places. */
export type Refusals = Readonly<Record<string, string>>;

/**
 * Reads a form. The spec is there when all of it can be read; the server checks what it means. Rows with nothing in
 * them are left out, so that rows of refusals are counted without them.
 */
export function readForm(form: Form): { spec: SessionSpec | undefined; refusals: Refusals } {
  const refusals: Record<string, string> = {};
  const attempt = <T>(read: () => T): T | undefined => {
    try {
      return read();
    } catch (error) {
      if (!(error instanceof UnreadableText)) throw error;
      refusals[error.field] = error.message;
      return undefined;
    }
  };
  const limit = form.timeLimit.trim();
  const attempts = attempt(() => whole("retry.max_attempts", form.attempts));
  const spec = create(SessionSpecSchema, {
    type: form.type,
    // A template's own values hold unless others are given.
    clusterMode: form.clusterMode,
    clusterSize: attempt(() => whole("cluster_size", form.clusterSize)) ?? (form.template === "" ? 1 : 0),
    name: form.name.trim(),
    project: form.project,
    resourceGroup: form.group,
    template: form.template === "" ? undefined : { name: form.template },
    kernel: {
      image: form.image.trim(),
      command: attempt(() => splitWords("kernel.command", form.command)),
      workingDirectory: form.directory.trim(),
      environment: attempt(() => pairs("kernel.environment", form.environment)),
      isolation: form.isolation,
      slots: Object.fromEntries(
        Object.entries(form.slots)
          .map(([slot, value]) => [slot, value.trim()] as const)
          .filter(([, value]) => value !== ""),
      ),
    },
    mounts: form.mounts
      .filter((row) => !isBlank(row))
      .map(({ source, target, writable }, at) => {
        // One path alone is the same on both sides.
        if (source.trim() === "") refusals[`mounts[${at}].source`] = unreadable("", "mountNeedsSource", "").message;
        return { source: source.trim(), target: target.trim() || source.trim(), writable };
      }),
    servicePorts: form.ports
      .filter((row) => !isBlank(row))
      .map(({ name, protocol, number }, at) => {
        const port = attempt(() => whole(`service_ports[${at}].ports[0]`, number, true));
        return { name: name.trim() || `port-${number.trim()}`, protocol, ports: port === undefined ? [] : [port] };
      }),
    labels: attempt(() => pairs("labels", form.labels)),
    priority: attempt(() => whole("priority", form.priority)),
    timeLimit: limit === "" ? undefined : attempt(() => durationFromMs(milliseconds("time_limit", limit))),
    dependsOn: [...form.dependsOn],
    retry: attempts === undefined ? undefined : { maxAttempts: attempts },
    bootstrapScript: form.bootstrap,
  });
  return { spec: Object.keys(refusals).length === 0 ? spec : undefined, refusals };
}

/** Whether nothing was written in a row: it is no part of the request. */
export function isBlank(row: Pair | MountRow | PortRow): boolean {
  if ("source" in row) return row.source.trim() === "" && row.target.trim() === "";
  if ("number" in row) return row.name.trim() === "" && row.number.trim() === "";
  return row.name.trim() === "" && row.value === "";
}

/** Reads `NAME=VALUE` lines, such as those of a file that is pasted into a field, as rows; none if it is no such text. */
export function pairsOf(text: string): Pair[] {
  const found: Pair[] = [];
  for (const line of text.split(/\r?\n/)) {
    const trimmed = line.trim().replace(/^export\s+/, "");
    if (trimmed === "" || trimmed.startsWith("#")) continue;
    const at = trimmed.indexOf("=");
    if (at < 1) return [];
    found.push({ name: trimmed.slice(0, at), value: trimmed.slice(at + 1) });
  }
  return found;
}

function pairs(field: string, rows: readonly Pair[]): Record<string, string> {
  const read: Record<string, string> = {};
  for (const row of rows) {
    if (isBlank(row)) continue;
    const name = row.name.trim();
    if (name === "") throw unreadable(`${field}['']`, "pairNeedsName", row.value);
    if (name in read) throw unreadable(`${field}['${name}']`, "pairTwice", name);
    read[name] = row.value;
  }
  return read;
}

function whole(field: string, text: string, required = false): number | undefined {
  const trimmed = text.trim();
  if (trimmed === "" && !required) return undefined;
  if (!/^\d{1,9}$/.test(trimmed)) throw unreadable(field, "noWholeNumber", trimmed);
  return Number(trimmed);
}

function milliseconds(field: string, text: string): number {
  const found = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(text);
  const length = MILLISECONDS[found?.[2] ?? "s"];
  if (found === null || length === undefined) throw unreadable(field, "noTimeLength", text);
  return Math.round(Number(found[1]) * length);
}
