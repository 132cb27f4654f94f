import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  AccessMode,
  AppProtocol,
  type EndpointSpec,
  EndpointSpecSchema,
  type RolloutSpecSchema,
} from "../gen/retinue/manager/v1/endpoint_pb";
import { splitWords, UnreadableText } from "./words";

/** What the fields of the page hold, as it was typed. */
export interface EndpointForm {
  name: string;
  project: string;
  image: string;
  command: string;
  port: string;
  protocol: "http1" | "http2" | "grpc";
  readiness: string;
  cpu: string;
  mem: string;
  gpu: string;
  min: string;
  max: string;
  concurrency: string;
  access: "token" | "public";
  strategy: "rolling" | "blueGreen" | "canary";
  steps: string;
  hold: string;
}

export const EMPTY_ENDPOINT: EndpointForm = {
  name: "",
  project: "",
  image: "",
  command: "",
  port: "8000",
  protocol: "http1",
  readiness: "",
  cpu: "1",
  mem: "256m",
  gpu: "",
  min: "1",
  max: "3",
  concurrency: "8",
  access: "token",
  strategy: "rolling",
  steps: "10, 50",
  hold: "5",
};

const PROTOCOLS = { http1: AppProtocol.HTTP1, http2: AppProtocol.HTTP2, grpc: AppProtocol.GRPC } as const;

/** Returns the endpoint that a form asks for; the server checks what it means. Throws UnreadableText. */
export function endpointOf(form: EndpointForm): EndpointSpec {
  const slots = Object.entries({ cpu: form.cpu, mem: form.mem, "cuda.device": form.gpu })
    .map(([slot, value]) => [slot, value.trim()] as const)
    .filter(([, value]) => value !== "");
  return create(EndpointSpecSchema, {
    name: form.name.trim(),
    project: form.project,
    revision: {
      session: {
        kernel: {
          image: form.image.trim(),
          command: splitWords("command", form.command),
          slots: Object.fromEntries(slots),
        },
      },
      port: whole("port", form.port) ?? 0,
      protocol: PROTOCOLS[form.protocol],
      readiness:
        form.readiness.trim() === "" ? undefined : { check: { case: "http", value: { path: form.readiness.trim() } } },
      maxConcurrency: whole("concurrency", form.concurrency) ?? 0,
    },
    scaling: { min: whole("min", form.min), max: whole("max", form.max) },
    access: { mode: form.access === "public" ? AccessMode.PUBLIC : AccessMode.TOKEN },
    rollout: rolloutOf(form),
  });
}

function rolloutOf(form: EndpointForm): MessageInitShape<typeof RolloutSpecSchema> | undefined {
  if (form.strategy === "rolling") return undefined;
  if (form.strategy === "blueGreen") return { strategy: { case: "blueGreen", value: {} } };
  const minutes = whole("hold", form.hold);
  const hold = minutes === undefined || minutes === 0 ? undefined : { seconds: BigInt(60 * minutes) };
  const steps = form.steps
    .split(",")
    .filter((part) => part.trim() !== "")
    .map((part) => ({ percent: whole("steps", part) ?? 0, hold }));
  return { strategy: { case: "canary", value: { steps } } };
}

function whole(field: string, text: string): number | undefined {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (!/^\d{1,6}$/.test(trimmed)) throw new UnreadableText(field, `${trimmed}: a whole number is wanted`);
  return Number(trimmed);
}

/** Which field of the form a field of the request is. */
export const FIELDS: Record<string, keyof EndpointForm> = {
  "spec.name": "name",
  "spec.project": "project",
  "spec.revision.session.kernel.image": "image",
  "spec.revision.session.kernel.command": "command",
  "spec.revision.session.kernel.slots": "cpu",
  "spec.revision.session.kernel.slots.cpu": "cpu",
  "spec.revision.session.kernel.slots.mem": "mem",
  "spec.revision.session.kernel.slots.cuda.device": "gpu",
  "spec.revision.port": "port",
  "spec.revision.protocol": "protocol",
  "spec.revision.readiness.http.path": "readiness",
  "spec.revision.max_concurrency": "concurrency",
  "spec.scaling.min": "min",
  "spec.scaling.max": "max",
  "spec.rollout.canary.steps": "steps",
};
