from __future__ import annotations

import asyncio

import pytest

from manager.lifecycle.persistence import persist
from manager.store.database import StoreUnavailable


async def test_begins_again_when_the_database_failed_alone_or_in_a_group() -> None:
    runs = 0

    async def fail() -> None:
        raise StoreUnavailable("gone")

    async def part() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await fail()
        if runs == 2:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        await persist("part", part, pause=0)
    assert runs == 3


async def test_cancelled_while_a_group_fails_it_ends() -> None:
    begun = asyncio.Event()

    async def fail_when_cancelled() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise StoreUnavailable("gone") from None

    async def part() -> None:
        assert not begun.is_set(), "it began again"
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_when_cancelled())

    running = asyncio.create_task(persist("part", part, pause=0))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await running
