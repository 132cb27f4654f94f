"""Output of attempts, read from the agents that hold it."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import grpc

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.agent_rpc.relay import AgentRefusedError, AgentUnavailableError, AttemptLocation, Forwarder
from retinue.rpc.core.output_stream import Stream
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# No output is as long as that.
_MAX_OFFSET = 2**53
_SIZE = re.compile(r"[0-9]{1,15}")


class OutputGoneError(Exception):
    """The agent does not have the output: not yet, or no longer."""


class OutputPastEndError(Exception):
    """The offset asked for is past the end of what there is, which is at `size`."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the output ends at {size}")
        self.size = size


@dataclass(frozen=True, slots=True)
class Span:
    """The part of an output that is wanted: from `offset` on, and nothing that is older than `since`,
    or before so many last lines (0: all).
    """

    offset: int = 0
    since: dt.datetime | None = None
    tail_lines: int = 0


class Piece(NamedTuple):
    """Bytes of output from one stream, and where they start."""

    offset: int
    data: bytes
    stream: Stream = Stream.UNSPECIFIED


async def stream_output(
    forwarder: Forwarder, location: AttemptLocation, span: Span, *, follow: bool
) -> AsyncIterator[Piece]:
    """Pieces of an attempt's output, in order, to its end now or, with `follow`, to the attempt's
    end. Offsets that make no sense end it: there is no output that they would belong to.

    Raises AgentUnavailableError, OutputGoneError, OutputPastEndError.
    """
    request = pb.StreamLogsRequest(
        attempt_id=location.attempt_id,
        offset=span.offset,
        follow=follow,
        since_time=timestamp(span.since),
        tail_lines=span.tail_lines,
    )
    try:
        async with aclosing(forwarder.stream(location, lambda stub: stub.StreamLogs, request)) as pieces:
            end = 0
            async for piece in pieces:
                if not end <= piece.offset <= _MAX_OFFSET:
                    raise OutputGoneError(f"agent {location.agent_id} sends output at {piece.offset} after {end}")
                end = piece.offset + len(piece.data)
                yield Piece(piece.offset, piece.data, Stream.of(piece.stream))
    except AgentRefusedError as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            raise OutputGoneError(str(error)) from error
        if error.code is grpc.StatusCode.OUT_OF_RANGE:
            size = error.metadata.get("size", "")
            raise OutputPastEndError(int(size) if _SIZE.fullmatch(size) else 0) from error
        raise AgentUnavailableError(f"agent {location.agent_id}: {error.code.name}") from error
