"""Limits how many streams of a kind one holder has open at a time."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from retinue.rpc.core.errors import StreamLimit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class OpenStreams:
    """Counts open streams; belongs on one event loop."""

    def __init__(self, limits: Mapping[str, int], default: int) -> None:
        """`limits` are by method; `default` is that of all others."""
        self._limits = limits
        self._default = default
        self._open: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def hold(self, method: str, holder: str, limit: int = 0) -> Iterator[None]:
        """Counts a stream for as long as the block lasts; a `limit` that is lower than the method's holds instead.
        Raises StreamLimit.
        """
        key, usual = (method, holder), self._limits.get(method, self._default)
        limit = min(limit, usual) if limit > 0 else usual
        if self._open[key] >= limit:
            raise StreamLimit(limit)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if self._open[key] == 0:
                del self._open[key]
