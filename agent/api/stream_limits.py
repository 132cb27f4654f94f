"""How many streams of a kind an attempt may have open at a time."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import grpc

from retinue.agent.api.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator


class OpenStreams:
    """Counts the streams of one kind, by attempt; belongs on one event loop."""

    def __init__(self, limit: int, message: str) -> None:
        """`message` follows the number: `32` `commands are attached to this kernel already`."""
        self._limit = limit
        self._message = message
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, attempt_id: str) -> Iterator[None]:
        """Counts a stream for as long as the block lasts. Raises ApiError when there are as many as there may be."""
        if self._open[attempt_id] >= self._limit:
            limit, message = str(self._limit), f"{self._limit} {self._message}"
            raise ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT", message, limit=limit)
        self._open[attempt_id] += 1
        try:
            yield
        finally:
            self._open[attempt_id] -= 1
            if not self._open[attempt_id]:
                del self._open[attempt_id]
