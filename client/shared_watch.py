"""Events of many sessions out of one stream: a server takes only so many streams of a user."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.client.errors import RetinueError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from retinue.manager.v1 import session_pb2

MAX_KEPT = 4096
"""Events that are kept for followers who begin further back."""


class SharedWatch:
    """One watch of all sessions, while it has followers; belongs on one event loop."""

    def __init__(self, watch: Callable[[int, str], AsyncGenerator[session_pb2.SessionEvent, None]]) -> None:
        """`watch` gives all events after a revision of an incarnation, without end."""
        self._watch = watch
        self._stream: _Stream | None = None

    def covers(self, revision: int, incarnation: str) -> bool:
        """Says whether all events after a revision can be had here."""
        stream = self._stream
        return stream is None or (revision >= stream.floor and incarnation == stream.incarnation)

    async def events(
        self, session_id: str, revision: int, incarnation: str
    ) -> AsyncGenerator[session_pb2.SessionEvent, None]:
        """Yields events of a session after a revision that is covered, without end. Raises CallError, as the watch."""
        stream = self._stream
        if stream is None:
            stream = self._stream = _Stream(revision, incarnation)
            stream.task = asyncio.create_task(self._read(stream), name="shared watch")
        queue: asyncio.Queue[session_pb2.SessionEvent | RetinueError] = asyncio.Queue()
        for event in stream.kept:
            if event.session_id == session_id and event.revision > revision:
                queue.put_nowait(event)
        queues = stream.queues.setdefault(session_id, [])
        queues.append(queue)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, RetinueError):
                    raise item
                if item.revision > revision:
                    yield item
        finally:
            queues.remove(queue)
            if not queues:
                del stream.queues[session_id]
            if not stream.queues:
                await self._end(stream)

    async def _read(self, stream: _Stream) -> None:
        try:
            async with aclosing(self._watch(stream.floor, stream.incarnation)) as events:
                async for event in events:
                    stream.add(event)
        except RetinueError as error:
            # Followers to come begin a stream of their own.
            if self._stream is stream:
                self._stream = None
            stream.fail(error)

    async def _end(self, stream: _Stream) -> None:
        if self._stream is stream:
            self._stream = None
        if stream.task is not None:
            stream.task.cancel()
            await asyncio.gather(stream.task, return_exceptions=True)


class _Stream:
    """One stream, what came last in it, and who follows it, by session."""

    def __init__(self, floor: int, incarnation: str) -> None:
        self.floor = floor
        """All events after this revision are kept, or are still to come."""
        self.incarnation = incarnation
        self.kept: deque[session_pb2.SessionEvent] = deque()
        self.queues: dict[str, list[asyncio.Queue[session_pb2.SessionEvent | RetinueError]]] = {}
        self.task: asyncio.Task[None] | None = None

    def add(self, event: session_pb2.SessionEvent) -> None:
        self.kept.append(event)
        if len(self.kept) > MAX_KEPT:
            self.floor = self.kept.popleft().revision
        for queue in self.queues.get(event.session_id, ()):
            queue.put_nowait(event)

    def fail(self, error: RetinueError) -> None:
        for queues in self.queues.values():
            for queue in queues:
                queue.put_nowait(error)
