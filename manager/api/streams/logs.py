"""StreamLogs: the output of kernels, of one or of all of them as it comes."""

from __future__ import annotations

import asyncio
import codecs
from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.manager.agent_rpc.output import OutputPastEndError, Piece
from retinue.manager.agent_rpc.relay import AgentUnavailableError, Forwarder
from retinue.manager.api.sessions.requests import log_span
from retinue.manager.api.visibility import find_session
from retinue.manager.controllers.log_collector import read_output
from retinue.manager.domain import errors
from retinue.manager.store.sessions import sessions
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import log_stream_pb2

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from retinue.manager.store.postgres.database import Database

# For so long the output of other kernels is followed before a stream fails for one that cannot be read.
_OTHERS_SECONDS = 5.0


async def serve_logs(
    database: Database, forwarder: Forwarder, request: pb.StreamLogsRequest
) -> AsyncGenerator[pb.StreamLogsResponse, None]:
    """Serves one stream."""
    span = log_span(request)
    async with database.transaction() as tx:
        session_id = await find_session(tx, request.session, owner_only=True)
        kernels = (await sessions.read_kernels(tx, [session_id])).get(session_id, [])
    wanted = {kernel.hostname: kernel.id for kernel in kernels}
    if not request.all:
        hostname = request.hostname or "main1"
        if hostname not in wanted:
            raise errors.InvalidRequest([("hostname", "is not the name of a kernel of this session")])
        wanted = {hostname: wanted[hostname]}

    def read(kernel_id: uuid.UUID) -> AsyncIterator[tuple[int, Piece]]:
        return read_output(database, forwarder, kernel_id, span, epoch=request.attempt, follow=request.follow)

    try:
        async with aclosing(_outputs(read, wanted, as_text=request.text, follow=request.follow)) as pieces:
            async for piece in pieces:
                yield piece
    except OutputPastEndError as error:
        raise errors.OffsetPastEnd(error.size) from error


async def _outputs(
    read: Callable[[uuid.UUID], AsyncIterator[tuple[int, Piece]]],
    wanted: Mapping[str, uuid.UUID],
    *,
    as_text: bool,
    follow: bool,
) -> AsyncGenerator[pb.StreamLogsResponse, None]:
    """Output of several kernels as it comes. One whose agent is not reached does not keep that of the others back."""
    # Pieces; None when one kernel is done; what went wrong.
    arrivals: asyncio.Queue[pb.StreamLogsResponse | Exception | None] = asyncio.Queue(maxsize=16)

    async def pump(hostname: str, kernel_id: uuid.UUID) -> None:
        cutter = TextCutter(hostname)
        try:
            async for number, piece in read(kernel_id):
                if as_text:
                    for part in cutter.cut(number, piece):
                        await arrivals.put(part)
                else:
                    await arrivals.put(
                        pb.StreamLogsResponse(
                            hostname=hostname,
                            attempt=number,
                            offset=piece.offset,
                            data=piece.data,
                            end_offset=piece.offset + len(piece.data),
                            stream=_stream(piece.stream),
                        )
                    )
            for part in cutter.end():
                await arrivals.put(part)
        except Exception as error:  # noqa: BLE001  # raised again by the reader of the queue
            if isinstance(error, AgentUnavailableError):
                error.hostname = hostname
            await arrivals.put(error)
        else:
            await arrivals.put(None)

    tasks = [asyncio.create_task(pump(hostname, kernel_id)) for hostname, kernel_id in wanted.items()]
    going = len(wanted)
    clock = asyncio.get_running_loop().time
    unread: AgentUnavailableError | None = None
    until: float | None = None
    try:
        while going and (until is None or clock() < until):
            try:
                async with asyncio.timeout_at(until):
                    arrival = await arrivals.get()
            except TimeoutError:
                break
            if isinstance(arrival, AgentUnavailableError):
                unread = unread or arrival
                until = until or (clock() + _OTHERS_SECONDS if follow else None)
                going -= 1
            elif isinstance(arrival, Exception):
                raise arrival
            elif arrival is None:
                going -= 1
            else:
                yield arrival
        if unread is not None:
            raise unread
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TextCutter:
    """Makes text of the output of one kernel: bytes of a character that is not whole wait for the next piece."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._epoch = self._position = self._stream = 0

    def cut(self, epoch: int, piece: Piece) -> list[pb.StreamLogsResponse]:
        """Returns the text that is whole with these bytes. What waits for bytes that did not come,
        before a gap, another stream or the next try, comes first.
        """
        before = (self._epoch, self._position, self._stream)
        pieces = [] if (epoch, piece.offset, piece.stream) == before else self.end()
        start = piece.offset - self._waiting()
        text = self._decoder.decode(piece.data)
        self._epoch, self._position, self._stream = epoch, piece.offset + len(piece.data), piece.stream
        return pieces + self._pieces(start, text)

    def end(self) -> list[pb.StreamLogsResponse]:
        """Returns what waits, of which no more comes."""
        start = self._position - self._waiting()
        text = self._decoder.decode(b"", final=True)
        return self._pieces(start, text)

    def _waiting(self) -> int:
        return len(self._decoder.getstate()[0])

    def _pieces(self, start: int, text: str) -> list[pb.StreamLogsResponse]:
        end = self._position - self._waiting()
        if not text:
            return []
        return [
            pb.StreamLogsResponse(
                hostname=self._hostname,
                attempt=self._epoch,
                offset=start,
                text=text,
                end_offset=end,
                stream=_stream(self._stream),
            )
        ]


def _stream(number: int) -> log_stream_pb2.LogStream.ValueType:
    return log_stream_pb2.LogStream.ValueType(number)
