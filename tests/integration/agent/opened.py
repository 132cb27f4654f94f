"""Runtimes that a test opens at one place, one after another, as an agent does when it is restarted."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from retinue.agent.attempts import Phase
from retinue.rpc.core.output_stream import Stream
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.agent.attempts import AttemptSpec, ObservedAttempt
    from retinue.agent.runtime.contract import Runtime
    from tests.integration.agent.conftest import Place

Opened = TypeVar("Opened", bound="Runtime")

HOSTS = "127.0.0.1\tlocalhost\n10.1.2.3\tsub1\n"


class Runtimes(ABC, Generic[Opened]):
    """The runtime that is open, and what becomes of its attempts."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.current: Opened | None = None
        self._waiters: set[asyncio.Event] = set()

    @abstractmethod
    async def open(self, **values: object) -> Opened:
        """Closes the runtime that is open, and opens the next one."""

    async def until(self, attempt_id: str, *phases: Phase) -> ObservedAttempt:
        """Waits until the attempt is in one of the phases. Raises AssertionError with what it is when it never is."""
        assert self.current is not None
        changed = asyncio.Event()
        self._waiters.add(changed)
        observed = None
        try:
            async with asyncio.timeout(NEVER) as bound:
                while (observed := self.current.observe()[attempt_id]).phase not in phases:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            assert not bound.expired(), f"still {observed}, not {phases}"
            raise
        finally:
            self._waiters.discard(changed)
        return observed

    def _changed(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def held(self, wanted: AttemptSpec) -> Opened:
        """Creates an attempt, which then waits at its start barrier."""
        runtime = self.current or await self.open()
        await runtime.prepare(wanted, HOSTS)
        held = await self.until(wanted.id, Phase.CREATED, Phase.FAILED)
        assert held.phase is Phase.CREATED, held.message
        return runtime

    async def started(self, wanted: AttemptSpec) -> Opened:
        """Creates an attempt and releases it."""
        runtime = await self.held(wanted)
        await runtime.start(wanted.id)
        return runtime

    async def ran(self, wanted: AttemptSpec) -> tuple[ObservedAttempt, str]:
        """Runs an attempt to its end and removes it; what became of it and what it printed."""
        runtime = await self.started(wanted)
        observed = await self.until(wanted.id, Phase.EXITED)
        output = self.printed(wanted.id)
        await runtime.remove(wanted.id)
        return observed, output

    def printed(self, attempt_id: str) -> str:
        """Returns what an attempt has printed so far: all of it only once it has ended."""
        assert self.current is not None
        piece = self.current.output(attempt_id).read(0)
        return "" if piece is None else piece.data.decode()

    async def printed_apart(self, attempt_id: str) -> tuple[str, str]:
        """Returns what an attempt has printed so far to its output and to its errors.
        There is no order between the two.
        """
        assert self.current is not None
        found = {Stream.STDOUT: b"", Stream.STDERR: b""}
        async for piece in self.current.output(attempt_id).stream(0, follow=False):
            found[piece.stream] += piece.data
        return found[Stream.STDOUT].decode(), found[Stream.STDERR].decode()

    async def until_printed(self, attempt_id: str, text: str = "") -> str:
        """Waits until an attempt has printed the text, or by default anything at all; returns all that it printed."""
        assert self.current is not None
        found = b""
        stream = self.current.output(attempt_id).stream(0, follow=True)
        async with asyncio.timeout(NEVER), contextlib.aclosing(stream) as pieces:
            async for piece in pieces:
                found += piece.data
                if text.encode() in found:
                    return found.decode()
        raise AssertionError(f"{attempt_id} has ended and printed {found!r}, not {text!r}")
