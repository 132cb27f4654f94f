// An external strategy without any package: gRPC is HTTP/2 with five bytes before each message, and a protobuf message
// is a list of numbered fields. Programs of more than a page use @grpc/grpc-js and the stubs of
// retinue/strategy/v1/strategy_service.proto.
//
//   node server.js 50070
//
// Orders sessions by the number of their kernels, the smallest first, and places each kernel
// on the first agent that has room.
"use strict";
const http2 = require("node:http2");

// --- protobuf: reading a message as {field number: [values]}, a value being a number or a buffer ---
function varint(buffer, at) {
  let value = 0n, shift = 0n;
  for (;;) {
    const byte = buffer[at++];
    value |= BigInt(byte & 0x7f) << shift;
    if (byte < 0x80) return [Number(BigInt.asIntN(64, value)), at];
    shift += 7n;
  }
}

function read(buffer) {
  const fields = {};
  for (let at = 0; at < buffer.length; ) {
    let tag, value;
    [tag, at] = varint(buffer, at);
    if ((tag & 7) === 0) [value, at] = varint(buffer, at);
    else if ((tag & 7) === 2) {
      let length;
      [length, at] = varint(buffer, at);
      value = buffer.subarray(at, (at += length));
    } else if ((tag & 7) === 1) value = buffer.subarray(at, (at += 8));
    else value = buffer.subarray(at, (at += 4));
    (fields[tag >> 3] ??= []).push(value);
  }
  return fields;
}

function numbers(packed) {
  const values = [];
  for (let at = 0; packed && at < packed.length; ) {
    let value;
    [value, at] = varint(packed, at);
    values.push(value);
  }
  return values;
}

const text = (field) => (field ? field[0].toString() : "");

function bytes(number, content) {
  const length = [];
  let rest = content.length;
  while (rest > 0x7f) { length.push((rest & 0x7f) | 0x80); rest >>>= 7; }
  return Buffer.concat([Buffer.from([(number << 3) | 2, ...length, rest]), content]);
}

// --- the strategy ---
function waiting(message) {
  const fields = read(message);
  return {
    id: text(fields[1]),
    kernels: (fields[4] ?? []).map((kernel) => numbers(read(kernel)[1]?.[0])),
    singleNode: Boolean(fields[5]?.[0]),
  };
}

function orderSessions(request) {
  const sessions = (read(request)[4] ?? []).map(waiting);
  sessions.sort((a, b) => a.kernels.length - b.kernels.length);
  return Buffer.concat(sessions.map((session) => bytes(1, Buffer.from(session.id))));
}

function placeSessions(request) {
  const fields = read(request);
  const agents = (fields[4] ?? []).map((message) => {
    const agent = read(message);
    return { id: text(agent[1]), free: numbers(agent[3]?.[0]), schedulable: Boolean(agent[6]?.[0]) };
  });
  const fits = (agent, amounts) => agent.schedulable && amounts.every((amount, slot) => amount <= agent.free[slot]);
  const take = (agent, amounts, sign) => amounts.forEach((amount, slot) => { agent.free[slot] -= sign * amount; });
  const placements = [];
  for (const session of (fields[3] ?? []).map(waiting)) {
    const groups = session.singleNode
      ? [session.kernels[0].map((_, slot) => session.kernels.reduce((sum, kernel) => sum + kernel[slot], 0))]
      : session.kernels;
    const taken = [];
    for (const amounts of groups) {
      const agent = agents.find((each) => fits(each, amounts));
      if (!agent) break;
      take(agent, amounts, 1);
      taken.push([agent, amounts]);
    }
    if (taken.length < groups.length) {
      taken.forEach(([agent, amounts]) => take(agent, amounts, -1));
      continue;
    }
    const names = session.kernels.map((_, rank) => taken[session.singleNode ? 0 : rank][0].id);
    const placement = [bytes(1, Buffer.from(session.id)), ...names.map((name) => bytes(2, Buffer.from(name)))];
    placements.push(bytes(1, Buffer.concat(placement)));
  }
  return Buffer.concat(placements);
}

// --- gRPC ---
const methods = {
  "/retinue.strategy.v1.StrategyService/OrderSessions": orderSessions,
  "/retinue.strategy.v1.StrategyService/PlaceSessions": placeSessions,
};

const server = http2.createServer();
server.on("stream", (stream, headers) => {
  const chunks = [];
  stream.on("error", () => {});
  stream.on("data", (chunk) => chunks.push(chunk));
  stream.on("end", () => {
    const method = methods[headers[":path"]];
    let status = "0", frame = null;
    try {
      const answer = method(Buffer.concat(chunks).subarray(5));
      const head = Buffer.alloc(5);
      head.writeUInt32BE(answer.length, 1);
      frame = Buffer.concat([head, answer]);
    } catch (error) {
      console.error(error);
      status = method ? "13" : "12";
    }
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": status }));
    stream.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
    stream.end(frame ?? undefined);
  });
});
server.listen(Number(process.argv[2] ?? 50070), "127.0.0.1", () => console.log(server.address().port));
