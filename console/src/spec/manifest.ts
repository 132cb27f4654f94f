import { type DescEnum, type DescField, type DescMessage, fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { type EndpointSpec, EndpointSpecSchema } from "../gen/retinue/manager/v1/endpoint_pb";
import { t } from "../text/language";
import { type Entry, isNull, type Node, NotYaml, nodesOf, yaml } from "./yaml";

/** What a file of an endpoint has that cannot be read, each with its line, from 1. */
export class UnreadableManifest extends Error {
  constructor(readonly mistakes: readonly { line: number; text: string }[]) {
    super(mistakes.map(({ line, text }) => t("mistakeAt", { line, text })).join("\n"));
  }
}

const DEEPEST = 32;
const SECONDS: Record<string, number> = { ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86_400, w: 604_800 };
const SPAN = /^(\d+(?:\.\d+)?(ms|s|min|m|h|d|w))+$/;

/**
 * Reads the one endpoint in a text as `retinue endpoint create -f` does: YAML or JSON, its spec or what
 * `retinue endpoint get -o yaml` prints; names of the API's JSON, values of enums written short, lengths of time as `5m`.
 * Throws UnreadableManifest.
 */
export function endpointIn(text: string): EndpointSpec {
  const reader = new Reader();
  const filled = documents(text).filter((document) => !isNull(document));
  const [only, ...others] = filled;
  if (only === undefined || others.length > 0) throw new UnreadableManifest([{ line: 1, text: t("oneEndpoint") }]);
  const entries = reader.entries(only);
  const kind = entries.get("kind");
  if (kind !== undefined && reader.text(kind.value) !== "endpoint") reader.mistake(kind.key, t("kindIsEndpoint"));
  reader.end();
  const wrapped = entries.get("spec");
  const json = reader.message(wrapped?.value ?? only, EndpointSpecSchema, 0, wrapped ? [] : ["kind"]);
  reader.end();
  try {
    return fromJson(EndpointSpecSchema, json);
  } catch (error) {
    throw new UnreadableManifest([{ line: 1, text: error instanceof Error ? error.message : String(error) }]);
  }
}

function documents(text: string): Node[] {
  try {
    return nodesOf(text);
  } catch (error) {
    if (!(error instanceof NotYaml)) throw error;
    throw new UnreadableManifest([{ line: error.line, text: error.message }]);
  }
}

/** Writes an endpoint as a file that `endpointIn` and the command line read. */
export function manifestOf(spec: EndpointSpec): string {
  return yaml(shortened(toJson(EndpointSpecSchema, spec) as Json, EndpointSpecSchema));
}

type Json = { [key: string]: JsonValue };

/** Values of enums as people write them: `canary-step` is no value, `http1` is. */
function shortened(json: Json, type: DescMessage): Json {
  const made: Json = {};
  for (const [name, value] of Object.entries(json)) {
    const field = type.fields.find((known) => known.jsonName === name);
    made[name] = field === undefined ? value : shortValue(value, field);
  }
  return made;
}

function shortValue(value: JsonValue, field: DescField): JsonValue {
  if (Array.isArray(value) && field.fieldKind === "list") return value.map((item) => shortSingle(item, field));
  if (field.fieldKind === "map" || field.fieldKind === "list") return value;
  return shortSingle(value, field);
}

function shortSingle(value: JsonValue, field: DescField): JsonValue {
  if (field.enum && typeof value === "string") {
    return value.slice(prefix(field.enum).length).toLowerCase().replaceAll("_", "-");
  }
  const inner = field.message;
  if (inner && typeof value === "object" && value !== null && !Array.isArray(value)) return shortened(value, inner);
  return value;
}

function prefix(type: DescEnum): string {
  return (type.values[0]?.name ?? "").replace(/UNSPECIFIED$/, "");
}

class Reader {
  readonly mistakes: { line: number; text: string }[] = [];

  end(): void {
    if (this.mistakes.length > 0) throw new UnreadableManifest(this.mistakes);
  }

  mistake(node: Node, text: string): void {
    this.mistakes.push({ line: node.line, text });
  }

  entries(node: Node): Map<string, Entry> {
    const entries = new Map<string, Entry>();
    if (node.kind !== "map") {
      this.mistake(node, t("fieldsHere"));
      return entries;
    }
    for (const entry of node.entries) {
      if (entry.key.kind !== "scalar") this.mistake(entry.key, t("fieldsHere"));
      else if (entries.has(entry.key.text)) this.mistake(entry.key, t("fieldTwice", { name: entry.key.text }));
      else entries.set(entry.key.text, entry);
    }
    return entries;
  }

  text(node: Node): string {
    return node.kind === "scalar" ? node.text : "";
  }

  message(node: Node, type: DescMessage, depth: number, skipped: readonly string[] = []): Json {
    const made: Json = {};
    if (depth > DEEPEST) {
      this.mistake(node, t("tooDeep"));
      return made;
    }
    for (const [name, { key, value }] of this.entries(node)) {
      if (skipped.includes(name)) continue;
      const field = type.fields.find((known) => known.jsonName === name || known.name === name);
      if (field === undefined) this.mistake(key, t("unknownField", { name, type: type.name }));
      else if (!isNull(value)) {
        const read = this.field(value, field, name, depth + 1);
        if (read !== undefined) made[field.jsonName] = read;
      }
    }
    return made;
  }

  private field(node: Node, field: DescField, name: string, depth: number): JsonValue | undefined {
    if (field.fieldKind === "map") {
      const entries = [...this.entries(node)].map(([key, { value }]) => [key, this.single(value, field, key, depth)]);
      return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
    }
    if (field.fieldKind === "list") {
      if (node.kind === "list") {
        return node.items.flatMap((item) => this.single(item, field, name, depth) ?? []);
      }
      this.mistake(node, t("mustBeList", { name }));
      return undefined;
    }
    return this.single(node, field, name, depth);
  }

  private single(node: Node, field: DescField, name: string, depth: number): JsonValue | undefined {
    const type = field.message;
    if (type !== undefined && type.typeName !== "google.protobuf.Duration") {
      if (type.typeName.startsWith("google.protobuf.")) return this.text(node);
      // A template may be just its name.
      if (type.name === "TemplateReference" && node.kind === "scalar") return { name: this.text(node) };
      return this.message(node, type, depth);
    }
    if (node.kind !== "scalar") {
      this.mistake(node, t("mustBeSingle", { name }));
      return undefined;
    }
    const text = this.text(node);
    if (type !== undefined) return this.span(node, name, text);
    if (field.enum !== undefined) return this.choice(node, field.enum, name, text);
    // An argument or an environment's value that looks like one is text all the same.
    if (node.plain && !isText(field) && (text === "true" || text === "false")) return text === "true";
    return isText(field) || !/^-?\d+(\.\d+)?$/.test(text) ? text : Number(text);
  }

  private span(node: Node, name: string, text: string): JsonValue | undefined {
    if (/^\d+(\.\d+)?$/.test(text)) return `${text}s`;
    if (SPAN.test(text)) {
      const parts = [...text.matchAll(/(\d+(?:\.\d+)?)(ms|s|min|m|h|d|w)/g)];
      return `${parts.reduce((sum, [, count, unit]) => sum + Number(count) * (SECONDS[unit ?? ""] ?? 0), 0)}s`;
    }
    this.mistake(node, t("mustBeTime", { name, text }));
    return undefined;
  }

  private choice(node: Node, type: DescEnum, name: string, text: string): JsonValue | undefined {
    const wanted = text.trim().toUpperCase().replaceAll("-", "_");
    const found = type.values.find((value) => value.name === wanted || value.name === prefix(type) + wanted);
    if (found !== undefined && found.number !== 0) return found.name;
    const choices = type.values
      .filter((value) => value.number !== 0)
      .map((value) => value.name.slice(prefix(type).length).toLowerCase().replaceAll("_", "-"));
    this.mistake(node, t("mustBeOneOf", { name, choices: choices.join(", ") }));
    return undefined;
  }
}

/** Whether a field holds text: 9 is the number of strings among the scalars. */
function isText(field: DescField): boolean {
  return field.scalar === 9;
}
