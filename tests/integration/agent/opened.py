"""Runtimes that a test opens at one place, one after another, as an agent does when it is restarted."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from retinue.agent.attempts import Phase

if TYPE_CHECKING:
    from retinue.agent.attempts import AttemptSpec, ObservedAttempt
    from retinue.agent.runtime.contract import Runtime
    from tests.integration.agent.conftest import Place

Opened = TypeVar("Opened", bound="Runtime")

HOSTS = "127.0.0.1\tlocalhost\n10.1.2.3\tsub1\n"
# What is made takes seconds on a node that does nothing else, and minutes on a busy one without KVM.
TIMEOUT = 600.0


class Runtimes(ABC, Generic[Opened]):
    """The runtime that is open, and what becomes of its attempts."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.current: Opened | None = None
        self._changed = asyncio.Event()

    @abstractmethod
    async def open(self, **values: object) -> Opened:
        """Closes the runtime that is open, and opens the next one."""

    async def until(self, attempt_id: str, *phases: Phase) -> ObservedAttempt:
        """Waits until the attempt is in one of the phases."""
        assert self.current is not None
        async with asyncio.timeout(TIMEOUT):
            while (observed := self.current.observe()[attempt_id]).phase not in phases:
                self._changed.clear()
                await self._changed.wait()
        return observed

    async def held(self, wanted: AttemptSpec) -> Opened:
        """Creates an attempt, which then waits at its start barrier."""
        runtime = self.current or await self.open()
        await runtime.prepare(wanted, HOSTS)
        held = await self.until(wanted.id, Phase.CREATED, Phase.FAILED)
        assert held.phase is Phase.CREATED, held.message
        return runtime

    async def ran(self, wanted: AttemptSpec) -> tuple[ObservedAttempt, str]:
        """Runs an attempt to its end and removes it; what became of it and what it printed."""
        runtime = await self.held(wanted)
        await runtime.start(wanted.id)
        observed = await self.until(wanted.id, Phase.EXITED)
        output = self.printed(wanted.id)
        await runtime.remove(wanted.id)
        return observed, output

    def printed(self, attempt_id: str) -> str:
        assert self.current is not None
        piece = self.current.output(attempt_id).read(0)
        return "" if piece is None else piece.data.decode()
