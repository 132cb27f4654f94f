"""Channels to agents: mutual TLS, each agent known by the name in its certificate.

Streams of users share connections, since each costs both sides a TLS handshake and 100 KB: up to MAX_STREAMS of one
purpose on one. That does not have one wait for another, because a stream that is not read uses up its own window and
not the connection's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto

import grpc
import grpc.aio

CONNECT_MS = 3_000
"""What a connection and its handshake may take, on a machine that is busy with many others."""
MAX_STREAMS = 32
"""Of one connection; they end together when it breaks."""
IDLE_SECONDS = 10.0
"""How long a connection without streams is kept for the next."""
WINDOW_BYTES = 32 * 1024
"""Bytes of a stream that are accepted before its reader asks for them."""
OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, this is the deadline of an attempt to connect.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Without it, megabytes pile up here for a user who does not read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # Nodes are inside the cluster, whatever the manager's environment says about the web.
    ("grpc.enable_http_proxy", 0),
)


class Purpose(Enum):
    """A purpose of streams; streams of one purpose share connections,
    so that typed input does not queue behind copied data.
    """

    PORT = auto()
    FILES = auto()
    OTHER = auto()


_Key = tuple[str, str, Purpose]


class _Connection:
    """A channel and how many streams it has."""

    def __init__(self, key: _Key, channel: grpc.aio.Channel) -> None:
        self.key = key
        self.channel = channel
        self.streams = 0
        self.retired = False
        """Whether no stream begins on it any more."""
        self.closing: asyncio.TimerHandle | None = None


class Dialer:
    """Opens channels to agents with the manager's certificate."""

    def __init__(self, credentials: Callable[[], grpc.ChannelCredentials]) -> None:
        """`credentials` returns those of the manager as they are now: each connection begins with them."""
        self._credentials = credentials
        self._shared: dict[_Key, list[_Connection]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, agent_id: str, address: str) -> grpc.aio.Channel:
        """A new channel of its own to an agent, to be closed by the caller."""
        return self._channel(f"{agent_id}.agent.retinue", address)

    def open_router(self, router_id: str, address: str) -> grpc.aio.Channel:
        """A new channel of its own to a router, to be closed by the caller."""
        return self._channel(f"{router_id}.router.retinue", address)

    def _channel(self, name: str, address: str) -> grpc.aio.Channel:
        options = (*OPTIONS, ("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1))
        return grpc.aio.secure_channel(address, self._credentials(), options=options)

    @contextlib.asynccontextmanager
    async def stream(self, agent_id: str, address: str, purpose: Purpose) -> AsyncIterator[grpc.aio.Channel]:
        """A channel for one stream, shared with others of the same purpose, for as long as the block lasts.

        One on which a stream finds no connection is given to no other: a new one does not wait for its next attempt.
        """
        connection = self._connection((agent_id, address, purpose))
        connection.streams += 1
        try:
            yield connection.channel
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._retire(connection)
            raise
        finally:
            connection.streams -= 1
            if connection.streams == 0:
                if connection.retired:
                    self._close(connection)
                else:
                    connection.closing = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close, connection)

    async def close(self) -> None:
        """Closes what is shared; streams on it end."""
        for connection in [connection for shared in self._shared.values() for connection in shared]:
            self._close(connection)
        if self._closing:
            await asyncio.wait(self._closing)

    def _connection(self, key: _Key) -> _Connection:
        """One that has room for another stream."""
        shared = self._shared.setdefault(key, [])
        connection = next((found for found in shared if found.streams < MAX_STREAMS), None)
        if connection is None:
            connection = _Connection(key, self.open(key[0], key[1]))
            shared.append(connection)
        if connection.closing is not None:
            connection.closing.cancel()
            connection.closing = None
        return connection

    def _retire(self, connection: _Connection) -> None:
        if connection.retired:
            return
        connection.retired = True
        shared = self._shared[connection.key]
        shared.remove(connection)
        if not shared:
            del self._shared[connection.key]

    def _close(self, connection: _Connection) -> None:
        self._retire(connection)
        if connection.closing is not None:
            connection.closing.cancel()
        task = asyncio.create_task(connection.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
