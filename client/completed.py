"""Runs a command in a session of its own, from its creation to its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from retinue.client import enum_names
from retinue.client.errors import RetinueError
from retinue.client.notebooks import as_html

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retinue.client.logs import LogChunk
    from retinue.client.sessions import Sessions
    from retinue.client.spec import SessionOptions
    from retinue.client.words import SessionResult
    from retinue.manager.v1 import session_pb2

KEPT = 16 << 20
"""Bytes of output that are returned."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A session that has ended. `output` is the last of what `main1` printed in its last try,
    `dropped` the bytes before it that are not kept.
    """

    session: session_pb2.Session
    output: bytes
    dropped: int = 0

    def __repr__(self) -> str:
        """Returns a text of one line."""
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        return f"<Completed {self.session.spec.name} {self.result}{code}, {len(self.output)} bytes of output>"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        facts = {"result": self.result, "exit code": self.exit_code, "message": self.session.message}
        return as_html(f"Session {self.session.spec.name}", facts, self.text)

    @property
    def exit_code(self) -> int | None:
        """Returns the exit code of `main1`; None when it never ran."""
        return self.session.exit_code if self.session.HasField("exit_code") else None

    @property
    def result(self) -> SessionResult:
        """Returns `SUCCESS`, `FAILED` or `UNDEFINED`."""
        return cast("SessionResult", enum_names.name_of(enum_names.SESSION_RESULT, self.session.result))

    @property
    def text(self) -> str:
        """Returns the output as text; bytes that are not UTF-8 are replaced."""
        return self.output.decode(errors="replace")


class _Output:
    """The last bytes of the newest try."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = self._attempt = 0
        self.dropped = 0

    def add(self, chunk: LogChunk) -> None:
        if chunk.attempt > self._attempt:
            self._pieces.clear()
            self._attempt, self._size, self.dropped = chunk.attempt, 0, 0
        self._pieces.append(chunk.data)
        self._size += len(chunk.data)
        self.dropped += chunk.dropped
        while self._size > KEPT:
            piece = self._pieces.popleft()
            rest = piece[self._size - KEPT :]
            self.dropped += len(piece) - len(rest)
            self._size -= len(piece) - len(rest)
            if rest:
                self._pieces.appendleft(rest)

    def data(self) -> bytes:
        return b"".join(self._pieces)


async def run_to_completion(
    sessions: Sessions,
    command: Sequence[str],
    output: Callable[[LogChunk], None] | None,
    options: SessionOptions,
) -> Completed:
    """Creates a session and follows it to its end; see `Client.run`.
    Raises CallError, UsageError, and what `output` raises.
    """
    merged: SessionOptions = {"type": "batch", **options, "command": command}
    session = await sessions.create(**merged)
    kept = _Output()
    try:
        async with contextlib.aclosing(session.logs(follow=True)) as chunks:
            async for chunk in chunks:
                kept.add(chunk)
                if output is not None:
                    output(chunk)
        await session.wait_ended()
    except BaseException:
        # The caller has no handle by which to end it.
        with contextlib.suppress(RetinueError):
            await asyncio.shield(session.terminate())
        raise
    return Completed(session.view, kept.data(), kept.dropped)
