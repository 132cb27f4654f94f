"""Channels to agents: mutual TLS, each agent known by the name in its certificate.

Streams of users share connections, since each costs both sides a TLS handshake and 100 KB: up to MAX_STREAMS of one
purpose on one. That does not have one wait for another, because a stream that is not read uses up its own window and
not the connection's.

An agent that was not reached a moment ago is not tried again by each call: they fail at once with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from enum import Enum, auto
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from prometheus_client import Counter

from retinue.manager.agent_rpc import reach

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retinue.manager.agent_rpc.reach import ClientIdentity, NotReached

CONNECT_MS = 3_000
"""What a connection and its handshake may take, on a machine that is busy with many others."""
MAX_STREAMS = 32
"""Of one connection; they end together when it breaks."""
IDLE_SECONDS = 10.0
"""How long a connection without streams is kept for the next."""
NOT_REACHED_SECONDS = 8.0
"""How long calls of an agent that was not reached fail at once."""
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


_FAILED = Counter(
    "retinue_agent_connections_failed", "Calls of agents that found no connection, by the reason.", ["reason"]
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


class AgentNotReachedError(Exception):
    """An agent cannot be connected to now; `found` says why."""

    def __init__(self, agent_id: str, found: NotReached) -> None:
        super().__init__(f"agent {agent_id} is not reached: {found.why}")
        self.agent_id = agent_id
        self.found = found


class Dialer:
    """Opens channels to agents with the manager's certificate, and finds out why one does not open."""

    def __init__(
        self,
        credentials: Callable[[], grpc.ChannelCredentials],
        identity: Callable[[], ClientIdentity] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`credentials` returns those of the manager as they are now: each connection begins with them. `identity`
        returns the same to look at certificates of agents by, which are not looked at without it.
        """
        self._credentials = credentials
        self._identity = identity
        self._clock = clock
        self._shared: dict[_Key, list[_Connection]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # Agents that were not reached when they were tried last, why, and until when that counts.
        self._not_reached: dict[tuple[str, str], tuple[NotReached, float]] = {}
        self._probes: dict[tuple[str, str, bool], asyncio.Task[NotReached | None]] = {}
        self._failed: Callable[[str], None] | None = None

    def on_failure(self, failed: Callable[[str], None] | None) -> None:
        """Has `failed` called with each agent that a call did not reach; None ends that."""
        self._failed = failed

    async def probe(self, agent_id: str, address: str, *, whole: bool) -> NotReached | None:
        """Connects to an agent and returns why that fails, or None; a `whole` probe looks at certificates too.
        Several at once are one.
        """
        key = agent_id, address, whole
        if (running := self._probes.get(key)) is None:
            identity = self._identity if whole else None
            running = asyncio.create_task(reach.probe(agent_id, address, identity), name=f"probe {agent_id}")
            self._probes[key] = running
            running.add_done_callback(lambda _: self._probes.pop(key, None))
        return await asyncio.shield(running)

    def note(self, agent_id: str, address: str, found: NotReached | None) -> None:
        """Notes why an agent is not reached for its next calls; None: it is reached."""
        if found is None:
            self._not_reached.pop((agent_id, address), None)
        else:
            self._not_reached[agent_id, address] = found, self._clock() + NOT_REACHED_SECONDS

    def check(self, agent_id: str, address: str) -> None:
        """Raises AgentNotReachedError when the agent was not reached a moment ago."""
        found, until = self._not_reached.get((agent_id, address), (None, 0.0))
        if found is not None and self._clock() < until:
            raise AgentNotReachedError(agent_id, found)
        if found is not None:
            del self._not_reached[agent_id, address]

    async def explain(self, agent_id: str, address: str) -> NotReached | None:
        """Returns why the connection to an agent broke, as far as a new one tells; None when that is made."""
        found = await self.probe(agent_id, address, whole=True)
        self.note(agent_id, address, found)
        if found is not None:
            _FAILED.labels(found.reason).inc()
            if self._failed is not None:
                self._failed(agent_id)
        return found

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
        Raises AgentNotReachedError at once when the agent was not reached a moment ago.
        """
        connection = self._connection((agent_id, address, purpose))
        connection.streams += 1
        try:
            # A connection that there is may outlive what keeps new ones away, as rules of a firewall do.
            if connection.channel.get_state() is not grpc.ChannelConnectivity.READY:
                self.check(agent_id, address)
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
        if remaining := {*self._closing, *self._probes.values()}:
            for running in self._probes.values():
                running.cancel()
            await asyncio.wait(remaining)

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
