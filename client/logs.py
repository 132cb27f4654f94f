"""Output of kernels, as one stream over any number of connections."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client.transport.calls import resumed
from retinue.manager.v1 import kernel_service_pb2
from retinue.types.v1 import log_stream_pb2

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator

    from retinue.client.errors import CallError
    from retinue.client.transport.backoff import RetryBudget
    from retinue.client.words import LogStream
    from retinue.manager.v1 import kernel_service_pb2_grpc


_STREAMS: dict[log_stream_pb2.LogStream.ValueType, LogStream] = {
    log_stream_pb2.LOG_STREAM_STDOUT: "stdout",
    log_stream_pb2.LOG_STREAM_STDERR: "stderr",
}


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of the output of a kernel, by the attempt of that number. `offset` is its first byte's; `dropped` bytes
    before it fell to the size limit, or could not be written. `stream` is `stdout` or `stderr`, empty where it is not
    known.
    """

    hostname: str
    offset: int
    data: bytes
    dropped: int = 0
    attempt: int = 0
    stream: LogStream = ""

    def __repr__(self) -> str:
        """Returns a text of one line."""
        stream = f" {self.stream}" if self.stream else ""
        return f"<LogChunk {self.hostname}{stream} at {self.offset}, {len(self.data)} bytes>"


async def stream_logs(  # the fields of the request
    stub: kernel_service_pb2_grpc.KernelServiceAsyncStub,
    session: str,
    *,
    hostname: str,
    all_kernels: bool,
    offset: int,
    follow: bool,
    since: dt.datetime | None = None,
    tail: int = 0,
    attempt: int = 0,
    retry_budget: RetryBudget,
) -> AsyncGenerator[LogChunk, None]:
    """Yields output from `offset` on, every byte exactly once; of `hostname` (empty: `main1`) or of all kernels,
    interleaved.

    Of the attempt with that number (0: the newest). With `follow` it continues until the kernels have ended, with their
    later attempts. `since` leaves out what was printed before, more or less, and `tail` all but so many last lines.
    Raises CallError.
    """
    # By hostname, the try that is read, and all before which is known.
    positions: dict[str, tuple[int, int]] = {}
    # Kernels that could not be read when they were tried last: what others print is no progress meanwhile.
    stuck: set[str] = set()

    def request() -> kernel_service_pb2.StreamLogsRequest:
        # All kernels together cannot be had from an offset: after a break they come from the start, and what is known
        # is left out.
        number, start = (0, 0) if all_kernels else max(positions.values(), default=(attempt, offset))
        made = kernel_service_pb2.StreamLogsRequest(
            session=session, hostname=hostname, all=all_kernels, offset=start, follow=follow, attempt=number
        )
        if since is not None and (all_kernels or not positions):
            made.since_time.FromDatetime(since)
        if not positions:
            made.tail_lines = tail
        return made

    def new(response: kernel_service_pb2.StreamLogsResponse) -> LogChunk | None:
        # The server says at which offset a span by time or by lines begins.
        first = response.offset if since is not None or tail else 0 if all_kernels else offset
        number, start = positions.get(response.hostname, (response.attempt, first))
        if response.attempt < number:
            return None
        return continuation(start if response.attempt == number else 0, response)

    def is_progress(response: kernel_service_pb2.StreamLogsResponse) -> bool:
        # A kernel that is read from its start again and again would hide one that cannot be read.
        if new(response) is None or (stuck and response.hostname not in stuck):
            return False
        stuck.discard(response.hostname)
        return True

    def failed(failure: CallError) -> None:
        if which := failure.metadata.get("hostname"):
            stuck.add(which)

    async with aclosing(
        resumed(
            stub.StreamLogs,
            request,
            endless=False,
            retry_budget=retry_budget,
            is_progress=is_progress,
            failed=failed,
        )
    ) as responses:
        async for response in responses:
            if (chunk := new(response)) is not None:
                positions[response.hostname] = (response.attempt, chunk.offset + len(chunk.data))
                yield chunk


def continuation(position: int, response: kernel_service_pb2.StreamLogsResponse) -> LogChunk | None:
    """Returns the part of a response that is new to a reader who has everything before `position`;
    None when nothing is.
    """
    if not response.data:
        # So much is lost, and nothing follows.
        lost = response.offset - position
        return LogChunk(response.hostname, response.offset, b"", lost, response.attempt) if lost > 0 else None
    known = max(0, position - response.offset)
    if known >= len(response.data):
        return None
    start = response.offset + known
    stream = _STREAMS.get(response.stream, "")
    return LogChunk(response.hostname, start, response.data[known:], start - position, response.attempt, stream)
