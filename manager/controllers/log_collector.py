"""Output of kernels: collected from agents when kernels end, and read by users from wherever it is."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from retinue.manager.agent_rpc.output import OutputGoneError, OutputPastEndError, Piece, Span, stream_output
from retinue.manager.agent_rpc.relay import AgentUnavailableError, AttemptLocation, Forwarder
from retinue.manager.domain.session.attempts import attempt_id
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.sessions import outputs
from retinue.manager.store.sessions.output_streams import StreamRuns
from retinue.rpc.cancellation import cancellable
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncIterator, Callable, Sequence

    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.store.sessions.outputs import PendingOutput

_log = logging.getLogger(__name__)

# What is kept of an ended kernel's output.
KEPT_BYTES = 1024 * 1024
PIECE_BYTES = 32 * 1024
_AT_ONCE, _AT_ONCE_OF_AGENT = 16, 4
# Pauses of an agent from which something could not be fetched: they double.
_MIN_PAUSE, _MAX_PAUSE = 1.0, 5.0
_FETCH_SECONDS = 30.0


class OutputCollector:
    """Fetches the tail of every ended attempt's output, so that its agent may forget it.
    Agents are independent of each other.
    """

    def __init__(
        self, database: Database, term: int, forwarder: Forwarder, committed: Callable[[Affected], None]
    ) -> None:
        self._database = database
        self._term = term
        self._forwarder = forwarder
        self._committed = committed
        self._wanted = asyncio.Event()
        # Agents that are fetched from or paused, and the last pauses of those that failed.
        self._busy: set[str] = set()
        self._pauses: dict[str, float] = {}
        # What fails, by agent; outputs that cannot be kept whatever agent they come from are of one of them.
        self._failing: dict[str, Retrying] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)
        # Agents that failed have a limit of their own: they may take all the time of each fetch.
        self._limit_of_failed = asyncio.Semaphore(_AT_ONCE)

    def wake(self) -> None:
        """Attempts may have ended."""
        self._wanted.set()

    async def run(self) -> None:
        """Collects until cancelled."""
        self._busy.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wanted.clear()
                async with self._database.transaction() as tx:
                    pending = await outputs.read_pending(tx, 4 * _AT_ONCE, self._busy)
                of_agents: dict[str, list[PendingOutput]] = {}
                for row in pending:
                    of_agents.setdefault(row.agent_id, []).append(row)
                self._busy.update(of_agents)
                for agent_id, rows in of_agents.items():
                    collecting = cancellable(self._collect_from, agent_id, rows[:_AT_ONCE_OF_AGENT])
                    group.create_task(collecting, name=f"outputs of {agent_id}")
                # The end of each of these wakes it too.
                await self._wanted.wait()

    async def _collect_from(self, agent_id: str, rows: Sequence[PendingOutput]) -> None:
        limit = self._limit_of_failed if agent_id in self._pauses else self._limit
        async with asyncio.TaskGroup() as group:
            fetches = [group.create_task(cancellable(self._try_to_collect, row, limit)) for row in rows]
        if all(fetch.result() for fetch in fetches):
            self._pauses.pop(agent_id, None)
            if (failing := self._failing.pop(agent_id, None)) is not None:
                failing.succeed()
        else:
            pause = self._pauses[agent_id] = min(_MAX_PAUSE, 2 * self._pauses.get(agent_id, _MIN_PAUSE / 2))
            await asyncio.sleep(pause)
        self._busy.discard(agent_id)
        self._wanted.set()

    async def _try_to_collect(self, row: PendingOutput, limit: asyncio.Semaphore) -> bool:
        try:
            async with limit:
                return await self._collect(row)
        except leadership.NotLeader:
            raise
        except Exception as error:  # noqa: BLE001  # logged whole; the output of others is collected
            self._fail(row, repr(error), unforeseen=error)
            return False

    def _fail(self, row: PendingOutput, error: object, *, unforeseen: Exception | None = None) -> None:
        failing = self._failing.get(row.agent_id)
        if failing is None:
            what = f"outputs of kernels that have ended cannot be collected from agent {row.agent_id}"
            level = logging.WARNING if unforeseen is None else logging.ERROR
            failing = self._failing[row.agent_id] = Retrying(what, _log, level=level)
        failing.fail(f"kernel {row.kernel_id}: {error}", unforeseen=unforeseen)

    async def _collect(self, row: PendingOutput) -> bool:
        start = max(0, row.log_size - KEPT_BYTES)
        data, streams = bytearray(), StreamRuns()
        try:
            async with asyncio.timeout(_FETCH_SECONDS):
                location = AttemptLocation(row.agent_id, row.address, attempt_id(row.kernel_id, row.epoch))
                pieces = stream_output(self._forwarder, location, Span(start), follow=False)
                async for offset, piece, stream in pieces:
                    if not piece:
                        # What was lost at the end is no reason to drop what came before.
                        continue
                    if offset != start + len(data):
                        # The size limit dropped what came before.
                        start, data, streams = offset, bytearray(), StreamRuns()
                    data += piece
                    streams.add(len(piece), stream)
                    if (beyond := len(data) - KEPT_BYTES) > KEPT_BYTES:
                        # However much an agent sends, no more is held than is kept.
                        start, data = start + beyond, data[beyond:]
                        streams.drop(beyond)
        except (AgentUnavailableError, TimeoutError) as error:
            self._fail(row, str(error) or f"nothing came within {_FETCH_SECONDS:g} s")
            return False
        except (OutputGoneError, OutputPastEndError) as error:
            _log.warning("output of kernel %s is gone: %s", row.kernel_id, error)
        beyond = max(0, len(data) - KEPT_BYTES)
        streams.drop(beyond)
        kept = outputs.KeptOutput(start + beyond, bytes(data[beyond:]), streams)
        try:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                await outputs.keep(tx, row.kernel_id, row.epoch, kept)
        except StoreUnavailable as error:
            self._fail(row, error)
            return False
        finally:
            # A commit that broke may have taken effect, and nothing else tells the agent to forget the attempt.
            self._committed({row.agent_id: [row.session_id]})
        return True


async def read_output(
    database: Database, forwarder: Forwarder, kernel_id: uuid.UUID, span: Span, *, epoch: int = 0, follow: bool
) -> AsyncIterator[tuple[int, Piece]]:
    """A span of the output of a kernel's attempt, by default the newest, as epochs and pieces of at most 32 KiB.

    With `follow`, continues until the kernel has ended, with later attempts too, each from its beginning. An attempt
    that is not known, or whose output is no longer kept, has none. Raises OutputPastEndError and AgentUnavailableError.
    """
    current = epoch
    while True:
        async with database.transaction() as tx:
            source = await outputs.read_source(tx, kernel_id, current)
        if source is None:
            return
        current = source.epoch
        finished = not source.on_agent
        if source.on_agent:
            location = AttemptLocation(source.agent_id, source.address, attempt_id(kernel_id, current))
            try:
                async for piece in stream_output(forwarder, location, span, follow=follow):
                    yield current, piece
                    span = Span(piece.offset + len(piece.data))
                finished = True
            except OutputGoneError:
                # Not created yet, or collected and forgotten in this moment.
                async with database.transaction() as tx:
                    source = await outputs.read_source(tx, kernel_id, current)
                if not follow and source is not None and source.on_agent:
                    return
        elif current:
            async for piece in _kept(database, kernel_id, current, span):
                yield current, piece
                span = Span(piece.offset + len(piece.data))
        if finished:
            if not follow:
                return
            async with database.transaction() as tx:
                source = await outputs.read_source(tx, kernel_id)
            if source is not None and source.newest > current:
                current, span = current + 1 if current else source.newest, Span()
                continue
            if source is None or not source.live:
                return
        await asyncio.sleep(0.2)


async def _kept(database: Database, kernel_id: uuid.UUID, epoch: int, span: Span) -> AsyncIterator[Piece]:
    async with database.transaction() as tx:
        kept = await outputs.read_kept(tx, kernel_id, epoch)
    start, data, end_time = kept.start_offset, kept.data, kept.end_time
    if span.offset > start + len(data):
        raise OutputPastEndError(start + len(data))
    if span.since is not None and end_time is not None and end_time < span.since:
        return
    first = max(span.offset - start, last_lines(data, span.tail_lines) if span.tail_lines else 0)
    for first_byte, last_byte, stream in kept.streams.parts(max(first, 0), len(data)):
        for begin in range(first_byte, last_byte, PIECE_BYTES):
            yield Piece(start + begin, data[begin : min(begin + PIECE_BYTES, last_byte)], stream)


def last_lines(data: bytes, count: int) -> int:
    """Returns where the last `count` lines begin, an unfinished one included."""
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(count):
        position = data.rfind(b"\n", 0, max(position, 0))
        if position < 0:
            return 0
    return position + 1
