// Creates a batch session and follows it to its end.
import { readFileSync } from "node:fs";

import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { SessionResult, SessionState, SessionType } from "./stubs/retinue/manager/v1/session_pb.js";
import { SessionService } from "./stubs/retinue/manager/v1/session_service_pb.js";

const transport = createGrpcTransport({
  baseUrl: `https://${process.env.RETINUE_ENDPOINT}`,
  nodeOptions: { ca: readFileSync(process.env.RETINUE_CA!), servername: "manager.retinue" },
});
const sessions = createClient(SessionService, transport);
const headers = { authorization: `Bearer ${process.env.RETINUE_TOKEN}` };

const { session, revision, incarnation } = await sessions.createSession(
  { spec: { type: SessionType.BATCH, kernel: { command: ["echo", "hello"] } } },
  { headers },
);
const watch = { sessionId: session!.id, afterRevision: revision, incarnation, untilEnded: true };
for await (const { events } of sessions.watchSessions(watch, { headers })) {
  for (const { change } of events) {
    if (change.case === "sessionMoved") {
      console.log(SessionState[change.value.toState], SessionResult[change.value.result]);
    }
  }
}
