import { fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { loadAll } from "js-yaml";
import { type SessionSpec, SessionSpecSchema } from "../gen/retinue/manager/v1/session_pb";
import { yaml } from "./yaml";

type Value = JsonValue | undefined;

/** Fields that are enums: texts for people leave out the prefix of their values, as the command line's manifests do. */
const ENUMS: Record<string, string> = {
  type: "SESSION_TYPE",
  clusterMode: "CLUSTER_MODE",
  isolation: "ISOLATION",
  pullPolicy: "PULL_POLICY",
  agentChoice: "AGENT_CHOICE",
  replicaPlacement: "REPLICA_PLACEMENT",
};

/** Fields that are maps of texts, in which no name means anything. */
const MAPS = new Set(["slots", "environment", "labels"]);

/** Writes a spec as YAML that `retinue apply` and templates read. */
export function yamlOf(spec: SessionSpec): string {
  return yaml(plain(toJson(SessionSpecSchema, spec), ""));
}

function plain(value: Value, key: string): Value {
  const prefix = ENUMS[key];
  if (prefix !== undefined && typeof value === "string") {
    return value.replace(`${prefix}_`, "").toLowerCase().replaceAll("_", "-");
  }
  if (MAPS.has(key)) return value;
  if (Array.isArray(value)) return value.map((item) => plain(item, "") as JsonValue);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, plain(item, name) as JsonValue]));
}

/** Reads YAML, or JSON, of a spec. Throws an error in words for people. */
export function specOfText(text: string): SessionSpec {
  const [first, ...others] = loadAll(text);
  const value = (first ?? {}) as JsonValue;
  if (typeof value !== "object" || value === null || Array.isArray(value) || others.length > 0)
    throw new Error("a mapping is needed");
  return fromJson(SessionSpecSchema, read(value, "") as JsonValue);
}

/** Amounts may be numbers, and enums may be written short, as in manifests. */
function read(value: Value, key: string): Value {
  const prefix = ENUMS[key];
  if (prefix !== undefined && typeof value === "string") {
    const word = value.toUpperCase().replaceAll("-", "_");
    return word.startsWith(prefix) ? word : `${prefix}_${word}`;
  }
  if (Array.isArray(value)) return value.map((item) => read(item, "") as JsonValue);
  if (typeof value !== "object" || value === null) return value;
  const words = MAPS.has(key);
  return Object.fromEntries(
    Object.entries(value).map(([name, item]) => [name, (words ? String(item) : read(item, name)) as JsonValue]),
  );
}
