// The scenario of all clients, with Connect: see ../README.md.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { Code, ConnectError, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { BadRequestSchema, ErrorInfoSchema } from "./gen/connect/google/rpc/error_details_pb.js";
import { AccountService } from "./gen/connect/retinue/manager/v1/account_service_pb.js";
import { KernelService } from "./gen/connect/retinue/manager/v1/kernel_service_pb.js";
import { ClusterMode, type SessionEvent, SessionState, SessionType } from "./gen/connect/retinue/manager/v1/session_pb.js";
import { type CreateSessionResponse, SessionService } from "./gen/connect/retinue/manager/v1/session_service_pb.js";
import { CodeStatus } from "./gen/connect/retinue/types/v1/code_pb.js";

/**
 * Opens a connection to the manager that the environment names.
 * Connect has no retries of its own: `retried` makes them.
 */
function connect(token: string): Transport {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  return createGrpcTransport({
    baseUrl: `https://${process.env.RETINUE_ENDPOINT}`,
    interceptors: [authorize],
    pingIntervalMs: 20_000,
    pingTimeoutMs: 10_000,
    // Every manager's certificate carries this name, whatever address is dialled.
    nodeOptions: { ca: readFileSync(process.env.RETINUE_CA!), servername: "manager.retinue" },
  });
}

/** Repeats a call that is safe to repeat while the manager cannot be reached, by the published policy. */
async function retried<T>(call: () => Promise<T>): Promise<T> {
  const { methodConfig } = JSON.parse(readFileSync(process.env.RETINUE_SERVICE_CONFIG!, "utf8"));
  const { maxAttempts, initialBackoff, backoffMultiplier } = methodConfig[0].retryPolicy;
  for (let attempt = 1, pause = 1000 * parseFloat(initialBackoff); ; attempt++, pause *= backoffMultiplier) {
    try {
      return await call();
    } catch (error) {
      if (ConnectError.from(error).code !== Code.Unavailable || attempt === maxAttempts) throw error;
      await sleep(pause * Math.random());
    }
  }
}

/** The error that a call has to end with. docs/reference/errors.md lists the reasons. */
async function refused(call: Promise<unknown>, code: Code, reason: string): Promise<ConnectError> {
  const error = await call.then(
    () => assert.fail("the call was not refused"),
    (error: unknown) => ConnectError.from(error),
  );
  assert.deepEqual([error.code, error.findDetails(ErrorInfoSchema)[0]?.reason], [code, reason], error.message);
  return error;
}

const transport = connect(process.env.RETINUE_TOKEN!);
const sessions = createClient(SessionService, transport);
const kernels = createClient(KernelService, transport);
const accounts = createClient(AccountService, transport);
const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

const { user } = await retried(() => accounts.getCaller({}));
console.log("caller:", user!.name);

// What an error carries: a code, a reason, the wrong fields, the id of the request.
const wrong = { spec: { name: "Not A Name", type: SessionType.BATCH, clusterSize: -1 } };
const error = await refused(sessions.createSession(wrong), Code.InvalidArgument, "INVALID_FIELD");
const violations = error.findDetails(BadRequestSchema)[0].fieldViolations;
for (const { field, description } of violations) console.log("refused:", field, description);
const fields = violations.map(({ field }) => field);
assert(fields.includes("spec.name") && fields.includes("spec.cluster_size"), `both wrong fields, not ${fields}`);
assert(error.metadata.has("x-request-id"), "a request id in the trailers");
await refused(sessions.getSession({ session: "no-such-session" }), Code.NotFound, "NOT_FOUND");
const stranger = createClient(AccountService, connect("rtn_wrong"));
await refused(stranger.getCaller({}), Code.Unauthenticated, "TOKEN_INVALID");

// Three kernels on two nodes, asked for twice with one request id, which makes one session.
const server = "echo hello from $BACKENDAI_CLUSTER_HOST; exec python3 -m http.server 8000 --bind 127.0.0.1";
const request = {
  requestId: randomUUID(),
  spec: {
    name: "clients-connect",
    type: SessionType.INTERACTIVE,
    clusterSize: 3,
    clusterMode: ClusterMode.MULTI_NODE,
    kernel: { slots: { cpu: "2", mem: "200m" } },
    roles: [{ role: "main", kernel: { command: ["sh", "-c", server] } }],
    servicePorts: [{ name: "web", protocol: "http", ports: [8000] }],
  },
};
const created = await retried(() => sessions.createSession(request));
const again = await retried(() => sessions.createSession(request));
const id = created.session!.id;
assert.equal(again.session!.id, id, "one session for one request id");
console.log("created:", id);

/** Every change of a session from its creation on, until it has ended. */
async function* changes({ position }: CreateSessionResponse): AsyncGenerator<SessionEvent["change"]> {
  const after = { revision: position!.revision - 1n, incarnation: position!.incarnation };
  const watch = { sessionId: id, after, untilEnded: true };
  for await (const { events } of sessions.watchSessions(watch)) for (const { change } of events) yield change;
}

let state = SessionState.UNSPECIFIED;
for await (const change of changes(created)) {
  if (change.case !== "sessionMoved") continue;
  state = change.value.toState;
  console.log("session:", SessionState[state]);
  if (state === SessionState.RUNNING) break;
}
assert.equal(state, SessionState.RUNNING);
const { session } = await sessions.getSession({ session: id });
assert.equal(session!.kernels.length, 3);
assert.equal(new Set(session!.kernels.map(({ agent }) => agent)).size, 2, "kernels on two nodes");

let logs = "";
for await (const piece of kernels.streamLogs({ session: id, follow: true, text: true })) {
  logs += piece.text;
  if (logs.includes("hello from main1\n")) break;
}
console.log("logs:", JSON.stringify(logs));

// A command in main1 that reads its input and reaches another kernel.
const step = <Case, Value>(name: Case, value: Value) => ({ step: { case: name, value } });
async function* command() {
  const words = ["sh", "-c", "read line; echo got $line; ssh sub2 hostname; exit 7"];
  yield step("start" as const, { session: id, spec: { command: words } });
  yield step("input" as const, step("stdin" as const, new TextEncoder().encode("a line\n")));
}
let output = "", exitCode = -1;
for await (const { output: sent } of kernels.attach(command())) {
  if (sent?.step.case === "stdout") output += text(sent.step.value);
  if (sent?.step.case === "exited") exitCode = sent.step.value.exitCode;
}
assert.deepEqual([output, exitCode], ["got a line\nsub2\n", 7]);
console.log("attach:", JSON.stringify(output), "exit code", exitCode);

async function* runs() {
  yield step("open" as const, { session: id, text: true });
  for (const code of ["print(sum(range(10)))", "1/0", "6 * 7"]) {
    yield step("input" as const, step("run" as const, { program: { case: "code" as const, value: code } }));
  }
}
const seen: string[] = [];
for await (const { output: sent } of kernels.executeCode(runs())) {
  if (sent?.step.case !== "events") continue;
  for (const { event } of sent.step.value.events) {
    if (event.case === "stdout") seen.push(event.value.trim());
    if (event.case === "media") seen.push(event.value.forms[0].text);
    if (event.case === "finished") seen.push(CodeStatus[event.value.status]);
  }
}
assert.deepEqual(seen, ["45", "OK", "ERROR", "42", "OK"]);
console.log("code:", seen.join(" "));

/** Speaks HTTP to a service port of the session. */
async function get(port: string): Promise<string> {
  async function* requests() {
    yield step("start" as const, { session: id, port });
    yield step("data" as const, new TextEncoder().encode("GET / HTTP/1.0\r\n\r\n"));
  }
  let page = "";
  for await (const { step } of kernels.openPort(requests())) if (step.case === "data") page += text(step.value);
  return page;
}
/** The same, once its program listens. */
async function getOpened(port: string): Promise<string> {
  for (;;) {
    try {
      return await get(port);
    } catch (error) {
      if (ConnectError.from(error).findDetails(ErrorInfoSchema)[0]?.reason !== "PORT_CLOSED") throw error;
      await sleep(100);
    }
  }
}
const page = await getOpened("web");
assert(page.startsWith("HTTP/1.0 200 OK"), page);
console.log("port:", page.split("\r\n")[0]);
await refused(get("nothing"), Code.NotFound, "NOT_FOUND");

await sessions.terminateSession({ session: id });
for await (const change of changes(created)) if (change.case === "sessionMoved") state = change.value.toState;
assert.equal(state, SessionState.TERMINATED);
console.log("session:", SessionState[state]);
console.log("scenario: ok");
// The connections would be kept for other calls.
process.exit(0);
