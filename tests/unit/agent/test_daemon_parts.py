"""What an agent is nothing without does not end unnoticed."""

from __future__ import annotations

import asyncio

import pytest

from retinue.agent.daemon import _uncancelled


async def cancelled_within() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def test_a_cancellation_that_nothing_asked_for_ends_the_agent() -> None:
    with pytest.raises(RuntimeError, match="nothing asked for that"):
        await _uncancelled(cancelled_within())


async def test_one_that_was_asked_for_is_passed_on() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(_uncancelled(work()))
    await begun.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert (task.cancelled(), ended.is_set()) == (True, True)
