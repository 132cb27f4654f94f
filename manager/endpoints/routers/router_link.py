"""One router's Sync stream, kept open for as long as this manager leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from retinue.manager.domain.endpoints.model import RevisionTraffic
from retinue.manager.endpoints.routers import messages
from retinue.manager.endpoints.routers.core.table import EdgeTable
from retinue.manager.endpoints.routers.core.traffic import Reading, rising
from retinue.manager.endpoints.routers.messages import ProtocolError
from retinue.router.v1 import router_service_pb2 as pb
from retinue.router.v1 import router_service_pb2_grpc as pb_grpc
from retinue.rpc.bidi_call import BidiCall
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable

    from retinue.manager.agent_rpc.dialer import Dialer

_log = logging.getLogger(__name__)

_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 5.0
_HEARTBEAT_SECONDS = 3.0
_WELCOME_SECONDS = 12.0


class RouterLink:
    """Dials one router until cancelled: sends it the table, and keeps what it says."""

    def __init__(
        self,
        router_id: str,
        address: str,
        *,
        incarnation: str,
        term: int,
        dialer: Dialer,
        table: Callable[[], tuple[EdgeTable, pb.Common]],
        endpoints: Callable[[EdgeTable, EdgeTable], tuple[list[pb.Endpoint], list[str]]],
        welcomed: Callable[[str, str], Awaitable[None]],
        moved: Callable[[], None],
        clock: Callable[[], float],
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """`table` is what is to be served now, `endpoints` the messages that lead from one table to another. `welcomed`
        gets the router's id and its base address for clients, `moved` is called when it acknowledged a table or holds a
        first request. `check_lease` raises TermOverError when nothing may be sent any more.
        """
        self.router_id = router_id
        self.address = address
        self.refusals: dict[uuid.UUID, str] = {}
        """Endpoints that the router refuses, with its words."""
        self._incarnation = incarnation
        self._term = term
        self._dialer = dialer
        self._table = table
        self._endpoints = endpoints
        self._welcomed = welcomed
        self._moved = moved
        self._clock = clock
        self._check_lease = check_lease
        self.began = clock()
        self._reading: Reading | None = None
        self._epoch = -1
        # Counts before the engine's last start.
        self._bases: dict[tuple[uuid.UUID, int], RevisionTraffic] = {}
        self._wanted = asyncio.Event()

    @property
    def reading(self) -> Reading | None:
        """Returns what the router said last; None before the first time in this term."""
        return self._reading

    def wake(self) -> None:
        """Notifies the link that the table may have changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Keeps a stream open; a broken one is opened again after a growing pause. Ends with TermOverError only."""
        backoff = _MIN_BACKOFF
        while True:
            began = self._clock()
            try:
                await cancellable(self._stream)
            except (
                grpc.aio.AioRpcError,
                grpc.aio.UsageError,
                asyncio.InvalidStateError,
                TimeoutError,
                UnrequestedCancellationError,
            ) as error:
                _log.info("link to router %s: %s", self.router_id, _described(error))
            except ProtocolError as error:
                _log.warning("router %s sends nonsense: %s", self.router_id, error)
            backoff = _MIN_BACKOFF if self._clock() - began > _MAX_BACKOFF else min(backoff * 2, _MAX_BACKOFF)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not a secret

    async def _stream(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            channel = self._dialer.open_router(self.router_id, self.address)
            stack.push_async_callback(channel.close)
            stub: pb_grpc.RouterServiceAsyncStub = pb_grpc.RouterServiceStub(channel)
            call = BidiCall(stub.Sync())
            self._check_lease()
            heartbeat = Duration(seconds=int(_HEARTBEAT_SECONDS))
            hello = pb.Hello(
                incarnation=self._incarnation,
                term=self._term,
                router_id=self.router_id,
                heartbeat_interval=heartbeat,
            )
            await call.write(pb.SyncRequest(hello=hello))
            async with asyncio.timeout(_WELCOME_SECONDS):
                first = await call.read()
            if first is None or first.WhichOneof("step") != "welcome":
                raise ProtocolError("it did not begin with a welcome")
            await self._welcomed(self.router_id, first.welcome.url)
            # It still serves its former table, of which nothing is known in this term.
            self._reading = Reading(self._clock())
            try:
                async with asyncio.TaskGroup() as group:
                    writer = group.create_task(cancellable(self._write, call), name=f"tell router {self.router_id}")
                    try:
                        await self._read(call)
                    finally:
                        call.cancel()
                        writer.cancel()
            except BaseExceptionGroup as failed:
                # As itself: what ends a stream ends neither this link nor those of other routers.
                raise failed.exceptions[0] from None

    async def _write(self, call: BidiCall[pb.SyncRequest, pb.SyncResponse]) -> None:
        sent, common = EdgeTable(), pb.Common()
        while True:
            self._wanted.clear()
            table, latest = self._table()
            request = None
            if table.revision and not sent.revision:
                changed, _ = self._endpoints(EdgeTable(), table)
                request = pb.SyncRequest(table=pb.Table(revision=table.revision, endpoints=changed, common=latest))
            elif table.revision and (table is not sent or latest != common):
                changed, removed = self._endpoints(sent, table)
                change = pb.Change(revision=table.revision, endpoints=changed, removed_endpoint_ids=removed)
                if latest != common:
                    change.common.CopyFrom(latest)
                request = pb.SyncRequest(change=change)
            self._check_lease()
            if request is not None:
                sent, common = table, latest
                await call.write(request)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_SECONDS):
                    await self._wanted.wait()
                    continue
            await call.write(pb.SyncRequest(heartbeat=pb.Heartbeat()))

    async def _read(self, call: BidiCall[pb.SyncRequest, pb.SyncResponse]) -> None:
        while True:
            message = await call.read()
            if message is None:
                return
            match message.WhichOneof("step"):
                case "applied":
                    self._take_applied(message.applied)
                case "traffic":
                    self._take_traffic(message.traffic)
                case step:
                    raise ProtocolError(f"{step} is out of place")

    def _take_applied(self, applied: pb.Applied) -> None:
        if applied.revision > self._table()[0].revision:
            raise ProtocolError(f"it serves table {applied.revision}, which there is not")
        self.refusals = {messages.read_id(found.endpoint_id): found.message for found in applied.refusals}
        before = self._reading or Reading(self._clock())
        self._reading = replace(before, heard=self._clock(), acknowledged=applied.revision)
        self._moved()

    def _take_traffic(self, traffic: pb.Traffic) -> None:
        held, now = messages.read_held(traffic), self._clock()
        before = self._reading or Reading(now)
        begun = held.keys() - before.held.keys()
        if not traffic.complete:
            self._reading = replace(before, heard=now, held={**before.held, **held})
        else:
            if traffic.epoch != self._epoch:
                self._bases, self._epoch = dict(before.revisions), traffic.epoch
            revisions = {
                key: rising(
                    before.revisions.get(key, RevisionTraffic()), counts, self._bases.get(key, RevisionTraffic())
                )
                for key, counts in messages.read_revisions(traffic).items()
            }
            draining = messages.read_draining(traffic)
            answered = messages.read_answered(traffic)
            self._reading = Reading(now, now, before.acknowledged, revisions, held, draining, answered)
        if begun:
            self._moved()


def _described(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)
