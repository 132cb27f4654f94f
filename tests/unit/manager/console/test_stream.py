"""How much of a stream a page may have before it."""

from __future__ import annotations

import asyncio

from retinue.manager.console.stream import WINDOW_BYTES, Window


async def _rests(task: asyncio.Task[None]) -> bool:
    """Returns whether a task waits for something other than its turn."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_page_that_reports_nothing_is_sent_everything() -> None:
    window = Window()
    for _ in range(3):
        await window.send(WINDOW_BYTES)


async def test_what_was_not_taken_is_bounded() -> None:
    window = Window()
    window.report(0)
    await window.send(WINDOW_BYTES)
    more = asyncio.create_task(window.send(1))
    assert await _rests(more)
    window.report(1)
    await more


async def test_a_report_takes_nothing_back() -> None:
    window = Window()
    window.report(WINDOW_BYTES)
    window.report(0)
    await window.send(2 * WINDOW_BYTES)


async def test_what_cannot_be_reported_is_not_waited_for() -> None:
    """A request that waits may wait for output to be taken, and the report of that is behind it."""
    window = Window()
    window.report(0)
    await window.send(WINDOW_BYTES)
    more = asyncio.create_task(window.send(1))
    assert await _rests(more)
    window.open()
    await more
    window.close()
    again = asyncio.create_task(window.send(1))
    assert await _rests(again)
    again.cancel()
