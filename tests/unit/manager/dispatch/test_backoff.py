"""Pauses between two streams grow until one has lasted, whatever the agent answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from retinue.manager.dispatch.agent_link import AgentLink


async def pauses(lifetimes: list[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the pauses after streams that sent their welcome and ended after so many seconds each, without jitter."""
    now, left, slept = 0.0, list(lifetimes), list[float]()

    async def converse(agent_link: AgentLink) -> None:
        nonlocal now
        agent_link._welcomed = now  # noqa: SLF001  # as `_converse` does first of all
        now += left.pop(0)

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)
        if not left:
            raise asyncio.CancelledError

    monkeypatch.setattr(AgentLink, "_stream", converse)
    monkeypatch.setattr("retinue.manager.dispatch.agent_link.random.uniform", lambda _least, most: most)
    unused = cast("Any", None)
    agent_link = AgentLink(
        "n1",
        "x:1",
        incarnation="i",
        term=1,
        dialer=unused,
        heartbeat=1.0,
        lost_after=60.0,
        desired=unused,
        protected=unused,
        removable=unused,
        listener=unused,
        clock=lambda: now,
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        await agent_link.run()
    return slept


async def test_an_agent_that_welcomes_and_closes_is_dialled_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = await pauses([0.0] * 12, monkeypatch)
    assert slept[0] <= 0.5
    assert slept == sorted(slept)
    assert slept[-1] == 5.0


async def test_a_stream_that_lasted_starts_the_pauses_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = await pauses([0.0] * 12 + [60.0, 0.0], monkeypatch)
    assert slept[12] == 0.1
    assert slept[13] == 0.2
