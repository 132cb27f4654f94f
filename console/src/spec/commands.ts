import { toJson } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { ClusterMode, type SessionSpec, SessionSpecSchema, SessionType } from "../gen/retinue/manager/v1/session_pb";
import { Isolation } from "../gen/retinue/types/v1/isolation_pb";
import { yamlOf } from "./text";
import { quoted } from "./words";

/** The same request in five languages. */
export interface Commands {
  cli: string;
  python: string;
  yaml: string;
  json: string;
  grpcurl: string;
}

const SECRET = /PASS|SECRET|TOKEN|KEY|CREDENTIAL/i;

/**
 * Writes a request for people to copy. Values of the environment that are called like secrets are left out: `$NAME`
 * stands for them, which a shell and the Python text read from their own environment.
 */
export function commandsFor(spec: SessionSpec): Commands {
  const json = JSON.stringify(toJson(SessionSpecSchema, withoutSecrets(spec)), undefined, 2);
  const request = JSON.stringify({ spec: toJson(SessionSpecSchema, withoutSecrets(spec)) });
  return {
    cli: cli(spec),
    python: python(spec),
    yaml: yamlOf(withoutSecrets(spec)),
    json,
    grpcurl: [
      'grpcurl -cacert "$RETINUE_CA" -authority manager.retinue -H "Authorization: Bearer $RETINUE_TOKEN"',
      `  -d ${quoted(request)}`,
      '  "$RETINUE_ENDPOINT" retinue.manager.v1.SessionService/CreateSession',
    ].join(" \\\n"),
  };
}

function withoutSecrets(spec: SessionSpec): SessionSpec {
  if (spec.kernel === undefined) return spec;
  const environment = Object.fromEntries(
    Object.entries(spec.kernel.environment).map(([name, value]) => [name, SECRET.test(name) ? `$${name}` : value]),
  );
  return { ...spec, kernel: { ...spec.kernel, environment } };
}

function typeName(spec: SessionSpec): string {
  return (SessionType[spec.type] ?? "").toLowerCase();
}

function isolationName(isolation: Isolation): string {
  return (Isolation[isolation] ?? "").toLowerCase();
}

function modeName(spec: SessionSpec): string {
  return spec.clusterMode === ClusterMode.MULTI_NODE ? "multi-node" : "single-node";
}

function cli(spec: SessionSpec): string {
  const words: string[][] = [["retinue", "run", "--detach"]];
  const add = (option: string, value: string | number | undefined) => {
    if (value !== undefined && value !== "") words.push([option, quoted(String(value))]);
  };
  const kernel = spec.kernel;
  if (spec.type !== SessionType.UNSPECIFIED) add("--type", typeName(spec));
  add("--name", spec.name);
  add("--template", spec.template?.name);
  if (spec.clusterSize > 0) add("--size", spec.clusterSize);
  if (spec.clusterMode !== ClusterMode.UNSPECIFIED) add("--mode", modeName(spec));
  const slots = Object.entries(kernel?.slots ?? {}).map(([slot, value]) => `${slot}=${value}`);
  add("--slots", slots.join(","));
  add("--image", kernel?.image);
  add("--workdir", kernel?.workingDirectory);
  if (kernel && kernel.isolation !== Isolation.UNSPECIFIED) add("--isolation", isolationName(kernel.isolation));
  for (const [name, value] of Object.entries(kernel?.environment ?? {})) {
    words.push(["--env", SECRET.test(name) ? `"${name}=$${name}"` : quoted(`${name}=${value}`)]);
  }
  for (const [name, value] of Object.entries(spec.labels)) add("--label", `${name}=${value}`);
  for (const mount of spec.mounts) add("--mount", `${mount.source}:${mount.target}${mount.writable ? ":rw" : ""}`);
  for (const port of spec.servicePorts) {
    add("--port", `${port.name}:${port.protocol}:${port.ports[0]}${port.host ? `:host=${port.host}` : ""}`);
  }
  add("--group", spec.resourceGroup);
  add("--project", spec.project);
  add("--priority", spec.priority);
  if (spec.timeLimit) add("--time-limit", `${durationMs(spec.timeLimit) / 1000}s`);
  for (const session of spec.dependsOn) add("--depends-on", session);
  add("--retry", spec.retry?.maxAttempts);
  if (spec.bootstrapScript !== "") words.push(["--bootstrap", `<(printf %s ${quoted(spec.bootstrapScript)})`]);
  if (kernel && kernel.command.length > 0) words.push(["--", ...kernel.command.map(quoted)]);
  return words.map((line) => line.join(" ")).join(" \\\n  ");
}

function python(spec: SessionSpec): string {
  const options: string[] = [];
  const add = (name: string, value: unknown) => {
    if (value !== undefined && value !== "") options.push(`${name}=${literal(value)}`);
  };
  const kernel = spec.kernel;
  if (spec.type !== SessionType.UNSPECIFIED) add("type", typeName(spec));
  add("name", spec.name);
  add("template", spec.template?.name);
  if (spec.clusterSize > 0) add("cluster_size", spec.clusterSize);
  if (spec.clusterMode !== ClusterMode.UNSPECIFIED) add("cluster_mode", modeName(spec));
  if (kernel && Object.keys(kernel.slots).length > 0) add("slots", kernel.slots);
  add("image", kernel?.image);
  add("working_directory", kernel?.workingDirectory);
  if (kernel && kernel.isolation !== Isolation.UNSPECIFIED) add("isolation", isolationName(kernel.isolation));
  if (kernel && kernel.command.length > 0) add("command", kernel.command);
  const environment = Object.entries(kernel?.environment ?? {});
  if (environment.length > 0) {
    const items = environment.map(
      ([name, value]) => `${literal(name)}: ${SECRET.test(name) ? `os.environ[${literal(name)}]` : literal(value)}`,
    );
    options.push(`environment={${items.join(", ")}}`);
  }
  if (Object.keys(spec.labels).length > 0) add("labels", spec.labels);
  const mounts = spec.mounts.map(({ source, target, writable }) => new Tuple(source, target, writable));
  if (mounts.length > 0) add("mounts", mounts);
  const ports = spec.servicePorts.map((port) =>
    port.host
      ? new Tuple(port.name, port.protocol, port.ports[0] ?? 0, port.host)
      : new Tuple(port.name, port.protocol, port.ports[0] ?? 0),
  );
  if (ports.length > 0) add("ports", ports);
  add("resource_group", spec.resourceGroup);
  add("project", spec.project);
  add("priority", spec.priority);
  if (spec.timeLimit) add("time_limit", durationMs(spec.timeLimit) / 1000);
  if (spec.dependsOn.length > 0) add("depends_on", spec.dependsOn);
  add("max_attempts", spec.retry?.maxAttempts);
  add("bootstrap_script", spec.bootstrapScript);
  const secrets = environment.some(([name]) => SECRET.test(name));
  return [
    ...(secrets ? ["import os", ""] : []),
    "from retinue.client import Client",
    "",
    "with Client() as client:",
    "    session = client.sessions.create(",
    ...options.map((option) => `        ${option},`),
    "    )",
  ].join("\n");
}

class Tuple {
  readonly items: unknown[];
  constructor(...items: unknown[]) {
    this.items = items;
  }
}

function literal(value: unknown): string {
  if (typeof value === "string") return text(value);
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value instanceof Tuple) return `(${value.items.map(literal).join(", ")})`;
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object" && value !== null) {
    return `{${Object.entries(value)
      .map(([key, item]) => `${text(key)}: ${literal(item)}`)
      .join(", ")}}`;
  }
  return String(value);
}

/** Writes text as Python does: JSON's escapes are Python's, but for characters beyond 16 bits. */
function text(value: string): string {
  return JSON.stringify(value);
}
