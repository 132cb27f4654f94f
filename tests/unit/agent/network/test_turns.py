"""Calls for one session take turns, whatever is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from retinue.agent.network import namespaces
from retinue.agent.network.links import SessionNetworks
from retinue.agent.network.rules_guard import Guard
from tests.support.eventually import NEVER
from tests.unit.agent.network.topologies import SESSION

OTHER = "0190c8f4-7d2e-7c3a-9b1f-2a5d8e4c6f02"


class Gate:
    """Stands for the removal of a name: says that it was entered, and waits to be let through."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.changed = asyncio.Event()
        self.open = threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, name: str) -> None:
        self.entered.append(name)
        self._loop.call_soon_threadsafe(self.changed.set)
        assert self.open.wait(NEVER)

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(NEVER):
            while len(self.entered) < count:
                self.changed.clear()
                await self.changed.wait()


async def test_the_next_call_waits_for_a_cancelled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr(namespaces, "delete", gate)
    networks = SessionNetworks("unit-turns", None, Guard("unit-turns"))
    try:
        first = asyncio.create_task(networks.remove(SESSION))
        await gate.wait(1)
        second = asyncio.create_task(networks.remove(SESSION))
        other = asyncio.create_task(networks.remove(OTHER))
        # Another session does not wait.
        await gate.wait(2)
        assert gate.entered == [networks.namespace(SESSION), networks.namespace(OTHER)]
        for _ in range(2):
            first.cancel()
            await asyncio.sleep(0)
        assert not first.done()
        assert len(gate.entered) == 2
    finally:
        gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    await other
    assert gate.entered.count(networks.namespace(SESSION)) == 2
