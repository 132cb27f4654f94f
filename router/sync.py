"""The Sync stream of a router: tables come, acknowledgements and traffic go;
one stream at a time, the newest leader's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc
from prometheus_client import Gauge

from retinue.router.convert import TableError
from retinue.router.v1 import router_service_pb2 as pb
from retinue.router.v1 import router_service_pb2_grpc
from retinue.rpc import times
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.core.terms import StaleIncarnationError, StaleTermError
from retinue.rpc.enrollment.peers import is_manager
from retinue.rpc.errors import grpc_code, status_of
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    import grpc.aio

    from retinue.router.serving import Serving
    from retinue.router.tables import Tables

_log = logging.getLogger(__name__)

_CONNECTED = Gauge("retinue_router_connected", "1 while a leader is connected to the router, else 0.")
TRAFFIC_SECONDS = 1.0
"""Pause between two reports of traffic."""
_HELLO_SECONDS = 10.0
_SILENT_INTERVALS = 4
_MIN_HEARTBEAT, _MAX_HEARTBEAT = 0.05, 60.0


class SyncServicer(router_service_pb2_grpc.RouterServiceServicer):
    """Serves the leader."""

    def __init__(
        self,
        serving: Serving,
        tables: Tables,
        welcome: Callable[[], Awaitable[pb.Welcome]],
        traffic: Callable[[], Awaitable[pb.Traffic]],
    ) -> None:
        """`welcome` says all but the revision; `traffic` raises OSError while the engine does not answer."""
        self._serving = serving
        self._tables = tables
        self._welcome = welcome
        self._traffic = traffic
        self._current: _Stream | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        # Of all streams together: a manager that dials again and again does not begin a new count.
        self._keeping = Retrying("the table cannot be kept on the disk", _log, level=logging.ERROR, part="kept table")
        self._counting = Retrying("there are no counts of requests", _log, part="counts")

    async def wait_disconnected(self) -> None:
        """Returns when no stream is open."""
        await self._idle.wait()

    async def Sync(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.SyncRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.SyncResponse]:
        """See the proto."""
        try:
            async with contextlib.aclosing(self._serve(request_iterator, context.auth_context())) as responses:
                async for response in responses:
                    yield response
        except ApiError as error:
            status = status_of(error)
            details = (("grpc-status-details-bin", status.SerializeToString()),)
            await context.abort(grpc_code(error.code), str(error), details)

    async def _serve(self, requests: AsyncIterator[pb.SyncRequest], peer: Any) -> AsyncGenerator[pb.SyncResponse, None]:
        if not is_manager(peer):
            raise ServiceError(Code.PERMISSION_DENIED, ErrorReason.METHOD_DENIED, "only a manager may call this")
        hello = await _first(requests)
        welcome = await self._welcome()
        if hello.router_id != welcome.router_id:
            message = f"this is router {welcome.router_id}"
            raise ServiceError(Code.PERMISSION_DENIED, ErrorReason.METHOD_DENIED, message)
        try:
            await self._tables.accept(hello.incarnation, hello.term)
        except StaleIncarnationError as error:
            raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STALE_INCARNATION, str(error)) from error
        except StaleTermError as error:
            raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STALE_TERM, str(error)) from error
        except OSError as error:
            self._keeping.fail(f"the leader's term: {error}")
        welcome.revision = self._tables.revision
        stream = _Stream(
            self._serving, self._tables, self._traffic, hello, keeping=self._keeping, counting=self._counting
        )
        if self._current is not None:
            self._current.cut(
                ServiceError(Code.ABORTED, ErrorReason.UNAVAILABLE, "another stream took this one's place")
            )
        self._current = stream
        self._idle.clear()
        _CONNECTED.set(1)
        _log.info("a manager of term %d is connected", hello.term)
        try:
            yield pb.SyncResponse(welcome=welcome)
            async with contextlib.aclosing(stream.run(requests)) as responses:
                async for response in responses:
                    yield response
        finally:
            if self._current is stream:
                self._current = None
                self._idle.set()
                _CONNECTED.set(0)
            _log.info("a manager of term %d is gone", hello.term)


class _Stream:
    """One stream: a reader that takes tables, and a generator of what goes."""

    def __init__(
        self,
        serving: Serving,
        tables: Tables,
        traffic: Callable[[], Awaitable[pb.Traffic]],
        hello: pb.Hello,
        *,
        keeping: Retrying,
        counting: Retrying,
    ) -> None:
        self._keeping = keeping
        self._counting = counting
        self._serving = serving
        self._tables = tables
        self._traffic = traffic
        interval = times.seconds(hello.heartbeat_interval)
        self._interval = min(_MAX_HEARTBEAT, max(_MIN_HEARTBEAT, interval))
        self._wake = asyncio.Event()
        self._end: ApiError | None = None
        self._closed = False
        # Tables of this stream only are acknowledged: the number of the first; 0 before it came.
        self._first = 0

    def cut(self, error: ApiError) -> None:
        """Ends the stream."""
        self._end = self._end or error
        self._wake.set()

    async def run(self, requests: AsyncIterator[pb.SyncRequest]) -> AsyncGenerator[pb.SyncResponse, None]:
        """Yields what goes to the leader until the stream ends."""
        stop_listening = self._serving.listen(self._wake.set)
        reader = asyncio.create_task(self._read(requests), name="sync reader")
        clock = asyncio.get_running_loop().time
        due, acknowledged = clock(), 0
        held: set[str] = set()
        refused: dict[str, str] = {}
        try:
            while self._end is None and not self._closed:
                self._wake.clear()
                refusals = self._serving.refusals | self._tables.refusals
                revision = self._serving.revision if 0 < self._first <= self._serving.applied else 0
                if revision and (revision, refusals) != (acknowledged, refused):
                    acknowledged, refused = revision, refusals
                    yield pb.SyncResponse(applied=_applied(revision, refusals))
                    continue
                now_held = self._serving.gate.held()
                if now_held.keys() - held:
                    held = set(now_held)
                    yield pb.SyncResponse(traffic=pb.Traffic(held=_held(now_held), epoch=self._serving.engine.epoch))
                    continue
                held &= now_held.keys()
                if clock() >= due:
                    due = clock() + TRAFFIC_SECONDS
                    try:
                        counts = await self._traffic()
                    except OSError as error:
                        self._counting.fail(error)
                    else:
                        self._counting.succeed()
                        yield pb.SyncResponse(traffic=counts)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._wake.wait()
            if self._end is not None:
                raise self._end
        finally:
            stop_listening()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[pb.SyncRequest]) -> None:
        try:
            while True:
                async with asyncio.timeout(self._interval * _SILENT_INTERVALS):
                    request = await anext(requests)
                if self._end is not None:
                    return
                await self._take(request)
        except StopAsyncIteration:
            self._closed = True
            self._wake.set()
        except TimeoutError:
            self.cut(ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, "nothing was received for too long"))
        except TableError as error:
            self.cut(ServiceError(Code.INVALID_ARGUMENT, ErrorReason.INVALID_FIELD, str(error)))
        except Exception:  # noqa: BLE001  # logged whole; the next stream begins from the start
            _log.exception("the stream of a manager failed")
            self.cut(ServiceError(Code.INTERNAL, ErrorReason.INTERNAL, "the router has a defect; look into its log"))

    async def _take(self, request: pb.SyncRequest) -> None:
        step = request.WhichOneof("step")
        try:
            if step == "table" and not self._first:
                self._first = self._serving.tables + 1
                await self._tables.replace(request.table)
            elif step == "change" and self._first:
                await self._tables.change(request.change)
            elif step != "heartbeat":
                raise TableError(f"{step} is out of place here")
            if step != "heartbeat":
                self._keeping.succeed()
        except OSError as error:
            self._keeping.fail(error)
        self._wake.set()


def _applied(revision: int, refusals: dict[str, str]) -> pb.Applied:
    items = sorted(refusals.items())
    return pb.Applied(revision=revision, refusals=[pb.Refusal(endpoint_id=key, message=text) for key, text in items])


def _held(counts: dict[str, int]) -> list[pb.HeldRequests]:
    return [pb.HeldRequests(endpoint_id=key, count=count) for key, count in sorted(counts.items())]


async def _first(requests: AsyncIterator[pb.SyncRequest]) -> pb.Hello:
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            request = await anext(requests)
    except (StopAsyncIteration, TimeoutError) as error:
        raise ServiceError(Code.INVALID_ARGUMENT, ErrorReason.INVALID_FIELD, "hello did not come") from error
    if request.WhichOneof("step") != "hello":
        raise ServiceError(Code.INVALID_ARGUMENT, ErrorReason.INVALID_FIELD, "the first step is not hello")
    return request.hello
