"""Long work gives others turns on the event loop."""

from __future__ import annotations

import asyncio

import pytest

from retinue.rpc.loop_slices import SLICE_SECONDS, in_slices


async def turns_beside(number: int, seconds: float) -> tuple[list[int], int]:
    """What becomes of `number` items of so many seconds each, and how often another task had a turn meanwhile."""
    now, turns, over = 0.0, 0, False

    def convert(item: int) -> int:
        nonlocal now
        now += seconds
        return -item

    async def other() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await asyncio.sleep(0)
    before = turns
    results = await in_slices(range(number), convert, clock=lambda: now)
    meanwhile, over = turns - before, True
    await beside
    return results, meanwhile


@pytest.mark.parametrize(
    ("number", "seconds", "turns"),
    [(0, 1.0, 0), (500, 0.0, 0), (500, SLICE_SECONDS / 8, 500 // 8), (3, 1.0, 3), (1, SLICE_SECONDS / 2, 0)],
)
def test_what_waits_has_a_turn_after_each_slice(number: int, seconds: float, turns: int) -> None:
    results, meanwhile = asyncio.run(turns_beside(number, seconds))
    assert results == [-item for item in range(number)]
    assert meanwhile == turns
