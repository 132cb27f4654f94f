import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { ClusterMode, type SessionSpec, SessionSpecSchema, SessionType } from "../gen/retinue/manager/v1/session_pb";
import type { RequestChange } from "../gen/retinue/manager/v1/session_service_pb";
import { Isolation } from "../gen/retinue/types/v1/isolation_pb";
import { splitWords, UnreadableText } from "./words";

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
  environment: string;
  mounts: string;
  ports: string;
  labels: string;
  priority: string;
  timeLimit: string;
  dependsOn: string;
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
  environment: "",
  mounts: "",
  ports: "",
  labels: "",
  priority: "",
  timeLimit: "",
  dependsOn: "",
  attempts: "",
  bootstrap: "",
};

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

/** Returns the spec that a form asks for; the server checks what it means. Throws UnreadableText. */
export function specOf(form: Form): SessionSpec {
  const slots = Object.fromEntries(
    Object.entries(form.slots)
      .map(([slot, value]) => [slot, value.trim()] as const)
      .filter(([, value]) => value !== ""),
  );
  const limit = form.timeLimit.trim();
  return create(SessionSpecSchema, {
    type: form.type,
    // A template's own values hold unless others are given.
    clusterMode: form.clusterMode,
    clusterSize: whole("clusterSize", form.clusterSize) ?? (form.template === "" ? 1 : 0),
    name: form.name.trim(),
    project: form.project,
    resourceGroup: form.group,
    template: form.template === "" ? undefined : { name: form.template },
    kernel: {
      image: form.image.trim(),
      command: splitWords("command", form.command),
      workingDirectory: form.directory.trim(),
      environment: pairs("environment", form.environment),
      isolation: form.isolation,
      slots,
    },
    mounts: lines(form.mounts).map((line) => {
      const [source = "", target = "", access, ...rest] = line.split(":");
      if (
        source === "" ||
        target === "" ||
        rest.length > 0 ||
        (access !== undefined && access !== "rw" && access !== "ro")
      ) {
        throw new UnreadableText("mounts", `${line}: write SOURCE:TARGET or SOURCE:TARGET:rw`);
      }
      return { source, target, writable: access === "rw" };
    }),
    servicePorts: lines(form.ports).map((line) => {
      const parts = line.split(":");
      const [name = "", protocol, number] = parts.length === 2 ? [parts[0], "tcp", parts[1]] : parts;
      const port = whole("ports", number ?? "");
      if (name === "" || port === undefined || parts.length > 3) {
        throw new UnreadableText("ports", `${line}: write NAME:NUMBER or NAME:http:NUMBER`);
      }
      return { name, protocol, ports: [port] };
    }),
    labels: pairs("labels", form.labels),
    priority: whole("priority", form.priority),
    timeLimit: limit === "" ? undefined : durationFromMs(milliseconds("timeLimit", limit)),
    dependsOn: form.dependsOn.split(/[\s,]+/).filter(Boolean),
    retry: form.attempts.trim() === "" ? undefined : { maxAttempts: whole("attempts", form.attempts) },
    bootstrapScript: form.bootstrap,
  });
}

function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

function pairs(field: string, text: string): Record<string, string> {
  return Object.fromEntries(
    lines(text).map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new UnreadableText(field, `${line}: write NAME=VALUE`);
      return [line.slice(0, at), line.slice(at + 1)];
    }),
  );
}

function whole(field: string, text: string): number | undefined {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (!/^\d{1,9}$/.test(trimmed)) throw new UnreadableText(field, `${trimmed} is not a whole number`);
  return Number(trimmed);
}

function milliseconds(field: string, text: string): number {
  const found = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(text);
  const length = MILLISECONDS[found?.[2] ?? "s"];
  if (found === null || length === undefined) throw new UnreadableText(field, `${text}: write 90s, 30m, 2h or 1d`);
  return Math.round(Number(found[1]) * length);
}
