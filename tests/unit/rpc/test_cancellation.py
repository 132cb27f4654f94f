"""Work that a group of tasks waits for does not end unnoticed."""

from __future__ import annotations

import asyncio

import pytest

from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable


async def cancelled_within() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def test_a_cancellation_that_nothing_asked_for_is_an_error() -> None:
    with pytest.raises(UnrequestedCancellationError, match="nothing asked for that"):
        await cancellable(cancelled_within)


async def test_one_that_was_asked_for_is_passed_on() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(cancellable(work))
    await begun.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert (task.cancelled(), ended.is_set()) == (True, True)
