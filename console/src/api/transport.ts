import {
  create,
  type DescMessage,
  type DescMethodStreaming,
  fromBinary,
  type MessageInitShape,
  toBinary,
} from "@bufbuild/protobuf";
import { base64Decode } from "@bufbuild/protobuf/wire";
import { Code, ConnectError, type StreamResponse, type Transport } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { StatusSchema } from "../gen/google/rpc/status_pb";

const PROTOCOL = "retinue.grpc.v1";
/** After so many bytes the page reports how many it has taken; the server does not send far beyond. */
const REPORT_BYTES = 64 << 10;
const MAX_BUFFERED = 4 << 20;

// Calls that change nothing are made again where no answer came: a laptop that changes its network loses them.
const READS = /^(Get|List|Explain|Preview)/;
/** Milliseconds before each further try. */
const READ_PAUSES: readonly number[] = [200, 1000];

/** Whether a call failed in the browser, and not at the server: `fetch` throws a TypeError then. */
function isUnanswered(error: unknown): boolean {
  return error instanceof ConnectError && error.cause instanceof TypeError;
}

interface End {
  code: number;
  message?: string;
  details?: string;
}

/**
 * Calls with one answer go by fetch, as gRPC-Web. Each stream has a WebSocket of its own:
 * browsers have six connections to a host for everything else.
 */
function consoleTransport(base: string): Transport {
  const unary = createGrpcWebTransport({ baseUrl: base, useBinaryFormat: true });
  return {
    async unary(method, signal, ...rest) {
      const call = () => unary.unary(method, signal, ...rest);
      if (!READS.test(method.name)) return call();
      for (const pause of READ_PAUSES) {
        try {
          return await call();
        } catch (error) {
          if (!isUnanswered(error) || signal?.aborted) throw error;
          await new Promise((resolve) => setTimeout(resolve, pause));
        }
      }
      return call();
    },
    async stream<I extends DescMessage, O extends DescMessage>(
      method: DescMethodStreaming<I, O>,
      signal: AbortSignal | undefined,
      _timeout: number | undefined,
      _header: HeadersInit | undefined,
      input: AsyncIterable<MessageInitShape<I>>,
    ): Promise<StreamResponse<I, O>> {
      signal?.throwIfAborted();
      const url = new URL(`${base}/${method.parent.typeName}/${method.name}`, location.href);
      url.protocol = url.protocol.replace("http", "ws");
      const socket = new WebSocket(url, PROTOCOL);
      socket.binaryType = "arraybuffer";
      const received = new Received(socket, signal);
      await received.opened;
      socket.send("0");
      void send(socket, method, input);
      async function* messages() {
        let taken = 0;
        let reported = 0;
        try {
          for (;;) {
            const next = await received.next();
            if (next === undefined) return;
            yield fromBinary(method.output, new Uint8Array(next));
            taken += next.byteLength;
            if (taken - reported >= REPORT_BYTES && socket.readyState === WebSocket.OPEN) {
              reported = taken;
              socket.send(String(taken));
            }
          }
        } finally {
          socket.close();
        }
      }
      return {
        service: method.parent,
        method,
        stream: true,
        header: new Headers(),
        trailer: new Headers(),
        message: messages(),
      } as StreamResponse<I, O>;
    },
  };
}

async function send<I extends DescMessage, O extends DescMessage>(
  socket: WebSocket,
  method: DescMethodStreaming<I, O>,
  input: AsyncIterable<MessageInitShape<I>>,
): Promise<void> {
  try {
    for await (const message of input) {
      if (socket.readyState !== WebSocket.OPEN) return;
      socket.send(toBinary(method.input, create(method.input, message)));
      // A large upload waits for the network, not in the page's memory.
      while (socket.bufferedAmount > MAX_BUFFERED && socket.readyState === WebSocket.OPEN) {
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    }
    if (socket.readyState === WebSocket.OPEN) socket.send("");
  } catch {
    socket.close();
  }
}

/** What a socket has sent, in order, and its end. */
class Received {
  readonly opened: Promise<void>;
  private readonly queue: ArrayBuffer[] = [];
  private end: End | undefined;
  private wake = () => {};

  constructor(socket: WebSocket, signal: AbortSignal | undefined) {
    this.opened = new Promise((resolve, reject) => {
      socket.onopen = () => resolve();
      socket.onerror = () => reject(new ConnectError("the console's server is not reached", Code.Unavailable));
    });
    socket.onmessage = (event: MessageEvent<ArrayBuffer | string>) => {
      if (typeof event.data === "string") this.end ??= JSON.parse(event.data) as End;
      else this.queue.push(event.data);
      this.wake();
    };
    socket.onclose = () => {
      this.end ??= { code: Code.Unavailable, message: "the connection broke" };
      this.wake();
    };
    signal?.addEventListener("abort", () => {
      this.end ??= { code: Code.Canceled, message: "cancelled" };
      socket.close();
      this.wake();
    });
  }

  /** Returns the next message; undefined after the last one. Throws ConnectError. */
  async next(): Promise<ArrayBuffer | undefined> {
    while (this.queue.length === 0 && this.end === undefined) {
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
    const message = this.queue.shift();
    if (message !== undefined || this.end === undefined || this.end.code === 0) return message;
    throw failed(this.end);
  }
}

function failed(end: End): ConnectError {
  const error = new ConnectError(end.message ?? "", end.code);
  if (end.details) {
    try {
      const status = fromBinary(StatusSchema, base64Decode(end.details));
      error.details = status.details.map((any) => ({
        type: any.typeUrl.slice(any.typeUrl.lastIndexOf("/") + 1),
        value: any.value,
      }));
    } catch {
      // Details that cannot be read leave the message.
    }
  }
  return error;
}

/** The transport of all clients of the page. */
export const transport = consoleTransport("/rpc");
