"""One agent's Sync stream, kept open for as long as this manager leads."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

import grpc
import grpc.aio

from manager.fleet import messages
from manager.fleet.desired import AttemptUsage, Desired, ListenerBrokenError, NodeFacts, NodeReport, Told
from manager.fleet.dialer import Dialer
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc

_log = logging.getLogger(__name__)

_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 5.0
# The kind of an agent whose kernels do nothing.
_NULL = "null"


# What is wanted on an agent: all of it, or all that belongs to some sessions. Raises ListenerBrokenError.
ReadDesired = Callable[[str, Collection[uuid.UUID] | None], Awaitable[Desired]]


class Listener(Protocol):
    """Takes in what agents say; each call returns once it is committed. Raises ListenerBrokenError when it is not."""

    async def welcomed(self, facts: NodeFacts) -> None:
        """A stream opened: the node's facts and all it observes."""

    async def reported(self, report: NodeReport) -> None:
        """Something changed on the node."""


class AgentLink:
    """Dials one agent until cancelled: tells it what is wanted, takes in its reports, notes when it was last heard."""

    def __init__(
        self,
        agent_id: str,
        address: str,
        *,
        term: int,
        dialer: Dialer,
        heartbeat: float,
        desired: ReadDesired,
        protected: Callable[[], frozenset[str]],
        listener: Listener,
        clock: Callable[[], float],
        null_kernels: bool = False,
        usage_interval: Callable[[], float] = lambda: 0.0,
        used: Callable[[Iterable[AttemptUsage]], None] = lambda _: None,
    ) -> None:
        """Unless `null_kernels` are wanted, an agent whose kernels do nothing is refused. `used` is told what attempts use, every so many seconds as
        `usage_interval` says at the time; 0 is never.
        """
        self.agent_id = agent_id
        self.address = address
        # When the agent was last heard on this link, by the clock; None before the first time.
        self.heard: float | None = None
        self.opened = clock()
        self._term = term
        self._dialer = dialer
        self._heartbeat = heartbeat
        self._desired = desired
        self._protected = protected
        self._listener = listener
        self._clock = clock
        self._null_kernels = null_kernels
        self._usage_interval = usage_interval
        self._used = used
        self._wanted = asyncio.Event()
        # Sessions of which the agent may not have been told the newest; None means any.
        self._changed: set[uuid.UUID] | None = set()

    def wake(self, session_ids: Collection[uuid.UUID] | None = None) -> None:
        """What is wanted of the agent for these sessions, by default for any, may have changed."""
        if session_ids is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.update(session_ids)
        self._wanted.set()

    async def run(self) -> None:
        """Keeps a stream open; a broken one is opened again after a growing pause."""
        backoff = _MIN_BACKOFF
        while True:
            opened = False
            channel = self._dialer.open(self.agent_id, self.address)
            try:
                stub: pb_grpc.AgentServiceAsyncStub = pb_grpc.AgentServiceStub(channel)
                call = stub.Sync()
                await call.write(messages.hello(self._term, self.agent_id, self._heartbeat))
                async with asyncio.timeout(self._heartbeat * 4):
                    first = await call.read()
                if isinstance(first, pb.SyncResponse) and first.HasField("welcome"):
                    if _NULL in first.welcome.backends and not self._null_kernels:
                        _log.error(
                            "agent %s runs nothing (null kernels): only a manager in development mode takes it",
                            self.agent_id,
                        )
                    else:
                        opened = True
                        await self._converse(call, first.welcome)
                _log.info("agent %s ended its stream", self.agent_id)
            except ListenerBrokenError as error:
                # The pause grows: the agent has nothing to do with it, and what it says again may fail again.
                opened = False
                _log.warning("link to agent %s: %s", self.agent_id, error)
            except (grpc.aio.AioRpcError, TimeoutError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                detail = (
                    f"{error.code().name}: {error.details()}"
                    if isinstance(error, grpc.aio.AioRpcError)
                    else repr(error)
                )
                _log.log(logging.WARNING if opened else logging.INFO, "link to agent %s: %s", self.agent_id, detail)
            finally:
                await channel.close()
            backoff = _MIN_BACKOFF if opened else min(backoff * 2, _MAX_BACKOFF)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not a secret

    async def _converse(
        self, call: grpc.aio.StreamStreamCall[pb.SyncRequest, pb.SyncResponse], welcome: pb.Welcome
    ) -> None:
        self.heard = self._clock()
        await self._listener.welcomed(messages.node_facts(welcome))
        self._wanted.clear()
        self._changed = set()
        desired, protected = await self._desired(self.agent_id, None), self._protected()
        await call.write(messages.snapshot(desired, protected))
        told = Told(desired, protected)
        # One writer at a time: acks come from the reader, changes and heartbeats from the teller.
        writing = asyncio.Lock()
        reader = asyncio.create_task(self._listen(call, writing), name=f"listen {self.agent_id}")
        teller = asyncio.create_task(self._tell(call, writing, told), name=f"tell {self.agent_id}")
        try:
            done, _ = await asyncio.wait((reader, teller), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            call.cancel()
            reader.cancel()
            teller.cancel()
            await asyncio.gather(reader, teller, return_exceptions=True)

    async def _listen(
        self, call: grpc.aio.StreamStreamCall[pb.SyncRequest, pb.SyncResponse], writing: asyncio.Lock
    ) -> None:
        while True:
            message = await call.read()
            if not isinstance(message, pb.SyncResponse):
                return
            self.heard = self._clock()
            if message.HasField("report"):
                await self._listener.reported(messages.node_report(self.agent_id, message.report))
                async with writing:
                    await call.write(messages.ack(message.report.sequence))
            elif message.HasField("usage"):
                self._used(messages.usage(message.usage))
            elif message.HasField("heartbeat"):
                # The agent goes by this, and not by what it hears: it says that the other direction works too.
                async with writing:
                    await call.write(messages.heartbeat(message.heartbeat.number))

    async def _tell(
        self, call: grpc.aio.StreamStreamCall[pb.SyncRequest, pb.SyncResponse], writing: asyncio.Lock, told: Told
    ) -> None:
        interval = 0.0
        while True:
            if interval != (interval := self._usage_interval()):
                async with writing:
                    await call.write(messages.watch_usage(interval))
            try:
                async with asyncio.timeout(self._heartbeat):
                    await self._wanted.wait()
            except TimeoutError:
                # A change of the fleet concerns every agent: it travels with what would be sent anyway, and costs no query.
                step = told.advance(Desired(), (), self._protected())
                async with writing:
                    await call.write(messages.change(step) if step else messages.heartbeat())
                continue
            self._wanted.clear()
            changed, self._changed = self._changed, set()
            wanted = await self._desired(self.agent_id, changed)
            sessions = None if changed is None else map(str, changed)
            if step := told.advance(wanted, sessions, self._protected()):
                async with writing:
                    await call.write(messages.change(step))
