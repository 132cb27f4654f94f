// The scenario of all clients, with grpc-js: see ../README.md.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import * as grpc from "@grpc/grpc-js";

import { BadRequest, ErrorInfo } from "./gen/grpc-js/google/rpc/error_details.js";
import { Status } from "./gen/grpc-js/google/rpc/status.js";
import { AccountServiceClient, type GetCallerResponse } from "./gen/grpc-js/retinue/manager/v1/account_service.js";
import {
  AttachRequest,
  type AttachResponse,
  ExecuteCodeRequest,
  type ExecuteCodeResponse,
  KernelServiceClient,
  OpenPortRequest,
  type OpenPortResponse,
  StreamLogsRequest,
  type StreamLogsResponse,
} from "./gen/grpc-js/retinue/manager/v1/kernel_service.js";
import { ClusterMode, type SessionEvent, SessionState, SessionType } from "./gen/grpc-js/retinue/manager/v1/session.js";
import {
  CreateSessionRequest,
  type CreateSessionResponse,
  type GetSessionResponse,
  SessionServiceClient,
  type TerminateSessionResponse,
  TerminateSessionRequest,
  WatchSessionsRequest,
  type WatchSessionsResponse,
} from "./gen/grpc-js/retinue/manager/v1/session_service.js";
import { CodeStatus } from "./gen/grpc-js/retinue/types/v1/code.js";

/** What a client needs to reach the manager that the environment names. */
function connection(token: string): [string, grpc.ChannelCredentials, grpc.ClientOptions] {
  const bearer = grpc.credentials.createFromMetadataGenerator((_, done) => {
    const metadata = new grpc.Metadata();
    metadata.set("authorization", `Bearer ${token}`);
    done(null, metadata);
  });
  const tls = grpc.credentials.createSsl(readFileSync(process.env.RETINUE_CA!));
  const options = {
    // Every manager's certificate carries this name, whatever address is dialled.
    "grpc.ssl_target_name_override": "manager.retinue",
    "grpc.service_config": readFileSync(process.env.RETINUE_SERVICE_CONFIG!, "utf8"),
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
  };
  return [process.env.RETINUE_ENDPOINT!, grpc.credentials.combineChannelCredentials(tls, bearer), options];
}

type Done<T> = (error: grpc.ServiceError | null, response: T) => void;

/** The response of a unary call, as a promise. */
function answer<T>(call: (done: Done<T>) => void): Promise<T> {
  return new Promise((resolve, reject) => call((error, response) => (error ? reject(error) : resolve(response))));
}

/**
 * The details of an error, which grpc-js leaves in its trailers as bytes; undefined where there is none of this type.
 */
function detail<T>(error: grpc.ServiceError, name: string, type: { decode(bytes: Uint8Array): T }): T | undefined {
  const [bytes] = error.metadata.get("grpc-status-details-bin") as Buffer[];
  const found = bytes && Status.decode(bytes).details.find(({ typeUrl }) => typeUrl.endsWith(`/google.rpc.${name}`));
  return found && type.decode(found.value);
}
/** The word by which programs tell errors apart; docs/reference/errors.md lists them. */
const reason = (error: grpc.ServiceError) => detail(error, "ErrorInfo", ErrorInfo)?.reason;

/** The error that a call has to end with. */
async function refused(call: Promise<unknown>, code: grpc.status, word: string): Promise<grpc.ServiceError> {
  const error = await call.then(
    () => assert.fail("the call was not refused"),
    (error: grpc.ServiceError) => error,
  );
  assert.deepEqual([error.code, reason(error)], [code, word], error.message);
  return error;
}

/** Sends all requests of a stream, half-closes it and yields the responses. */
function exchange<Q, A>(stream: grpc.ClientDuplexStream<Q, A>, requests: Q[]): AsyncIterable<A> {
  for (const request of requests) stream.write(request);
  stream.end();
  return stream;
}

const options = connection(process.env.RETINUE_TOKEN!);
const sessions = new SessionServiceClient(...options);
const kernels = new KernelServiceClient(...options);
const accounts = new AccountServiceClient(...options);

const { user } = await answer<GetCallerResponse>((done) => accounts.getCaller({}, done));
console.log("caller:", user!.name);

// What an error carries: a code, a reason, the wrong fields, the id of the request.
const wrong = CreateSessionRequest.fromPartial({
  spec: { name: "Not A Name", type: SessionType.SESSION_TYPE_BATCH, clusterSize: -1 },
});
const error = await refused(
  answer<CreateSessionResponse>((done) => sessions.createSession(wrong, done)),
  grpc.status.INVALID_ARGUMENT,
  "INVALID_FIELD",
);
const { fieldViolations } = detail(error, "BadRequest", BadRequest)!;
for (const { field, description } of fieldViolations) console.log("refused:", field, description);
const fields = fieldViolations.map(({ field }) => field);
assert(fields.includes("spec.name") && fields.includes("spec.cluster_size"), `both wrong fields, not ${fields}`);
assert.equal(error.metadata.get("x-request-id").length, 1, "a request id in the trailers");
await refused(
  answer<GetSessionResponse>((done) => sessions.getSession({ session: "no-such-session" }, done)),
  grpc.status.NOT_FOUND,
  "NOT_FOUND",
);
const stranger = new AccountServiceClient(...connection("rtn_wrong"));
await refused(
  answer<GetCallerResponse>((done) => stranger.getCaller({}, done)),
  grpc.status.UNAUTHENTICATED,
  "TOKEN_INVALID",
);

// Three kernels on two nodes, asked for twice with one request id, which makes one session.
const server = "echo hello from $BACKENDAI_CLUSTER_HOST; exec python3 -m http.server 8000 --bind 127.0.0.1";
const request = CreateSessionRequest.fromPartial({
  requestId: randomUUID(),
  spec: {
    name: "clients-grpc-js",
    type: SessionType.SESSION_TYPE_INTERACTIVE,
    clusterSize: 3,
    clusterMode: ClusterMode.CLUSTER_MODE_MULTI_NODE,
    kernel: { slots: { cpu: "2", mem: "200m" } },
    roles: [{ role: "main", kernel: { command: ["sh", "-c", server] } }],
    servicePorts: [{ name: "web", protocol: "http", ports: [8000] }],
  },
});
const created = await answer<CreateSessionResponse>((done) => sessions.createSession(request, done));
const again = await answer<CreateSessionResponse>((done) => sessions.createSession(request, done));
const id = created.session!.id;
assert.equal(again.session!.id, id, "one session for one request id");
console.log("created:", id);

/** Every change of a session from its creation on, until it has ended. */
async function* changes({ position }: CreateSessionResponse): AsyncGenerator<SessionEvent["change"]> {
  const after = { revision: position!.revision - 1n, incarnation: position!.incarnation };
  const stream: AsyncIterable<WatchSessionsResponse> = sessions.watchSessions(
    WatchSessionsRequest.fromPartial({ sessionId: id, after, untilEnded: true }),
  );
  for await (const { events } of stream) for (const { change } of events) yield change;
}

let state = SessionState.SESSION_STATE_UNSPECIFIED;
for await (const change of changes(created)) {
  if (change?.$case !== "sessionMoved") continue;
  state = change.value.toState;
  console.log("session:", SessionState[state]);
  // Leaving the loop ends the stream.
  if (state === SessionState.SESSION_STATE_RUNNING) break;
}
assert.equal(state, SessionState.SESSION_STATE_RUNNING);
const { session } = await answer<GetSessionResponse>((done) => sessions.getSession({ session: id }, done));
assert.equal(session!.kernels.length, 3);
assert.equal(new Set(session!.kernels.map(({ agent }) => agent)).size, 2, "kernels on two nodes");

let logs = "";
const pieces: AsyncIterable<StreamLogsResponse> = kernels.streamLogs(
  StreamLogsRequest.fromPartial({ session: id, follow: true }),
);
for await (const { data } of pieces) if ((logs += data).includes("hello from main1\n")) break;
console.log("logs:", JSON.stringify(logs));

// A command in main1 that reads its input and reaches another kernel.
const command = ["sh", "-c", "read line; echo got $line; ssh sub2 hostname; exit 7"];
let output = "", exitCode = -1;
const responses: AsyncIterable<AttachResponse> = exchange(kernels.attach(), [
  AttachRequest.fromPartial({ step: { $case: "start", value: { session: id, spec: { command } } } }),
  AttachRequest.fromPartial({
    step: { $case: "input", value: { step: { $case: "stdin", value: Buffer.from("a line\n") } } },
  }),
]);
for await (const { output: sent } of responses) {
  const step = sent?.step;
  if (step?.$case === "stdout") output += step.value;
  if (step?.$case === "exited") exitCode = step.value.exitCode;
}
assert.deepEqual([output, exitCode], ["got a line\nsub2\n", 7]);
console.log("attach:", JSON.stringify(output), "exit code", exitCode);

const runs = ["print(sum(range(10)))", "1/0", "6 * 7"].map((code) =>
  ExecuteCodeRequest.fromPartial({
    step: { $case: "input", value: { step: { $case: "run", value: { program: { $case: "code", value: code } } } } },
  }),
);
const opening = ExecuteCodeRequest.fromPartial({ step: { $case: "open", value: { session: id } } });
const seen: string[] = [];
const ran: AsyncIterable<ExecuteCodeResponse> = exchange(kernels.executeCode(), [opening, ...runs]);
for await (const { output: sent } of ran) {
  const step = sent?.step;
  if (step?.$case !== "events") continue;
  for (const { event } of step.value.events) {
    if (event?.$case === "stdout") seen.push(event.value.trim());
    if (event?.$case === "media") seen.push(String(event.value.forms[0].data));
    if (event?.$case === "finished") seen.push(CodeStatus[event.value.status].replace("CODE_STATUS_", ""));
  }
}
assert.deepEqual(seen, ["45", "OK", "ERROR", "42", "OK"]);
console.log("code:", seen.join(" "));

/** Speaks HTTP to a service port of the session. */
async function get(port: string): Promise<string> {
  let page = "";
  const stream: AsyncIterable<OpenPortResponse> = exchange(kernels.openPort(), [
    OpenPortRequest.fromPartial({ step: { $case: "start", value: { session: id, port } } }),
    OpenPortRequest.fromPartial({ step: { $case: "data", value: Buffer.from("GET / HTTP/1.0\r\n\r\n") } }),
  ]);
  for await (const { step } of stream) if (step?.$case === "data") page += step.value;
  return page;
}
/** The same, once its program listens. */
async function getOpened(port: string): Promise<string> {
  for (;;) {
    try {
      return await get(port);
    } catch (error) {
      if (reason(error as grpc.ServiceError) !== "PORT_CLOSED") throw error;
      await sleep(100);
    }
  }
}
const page = await getOpened("web");
assert(page.startsWith("HTTP/1.0 200 OK"), page);
console.log("port:", page.split("\r\n")[0]);
await refused(get("nothing"), grpc.status.NOT_FOUND, "NOT_FOUND");

const end = TerminateSessionRequest.fromPartial({ session: id });
await answer<TerminateSessionResponse>((done) => sessions.terminateSession(end, done));
for await (const change of changes(created)) if (change?.$case === "sessionMoved") state = change.value.toState;
assert.equal(state, SessionState.SESSION_STATE_TERMINATED);
console.log("session:", SessionState[state]);
console.log("scenario: ok");
process.exit(0);
