"""How much of a stream a page may have before it, and how long it may be silent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import WSMessage, WSMsgType

from retinue.manager.console.stream import HEARTBEAT_SECONDS, WINDOW_BYTES, Stream, Window
from tests.link.virtual_time import run

if TYPE_CHECKING:
    from retinue.manager.console.core.frames import End


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


class _Page:
    """The socket of a page that says nothing, and is answered nothing."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers
        self._came = asyncio.Queue[WSMessage]()
        self.closed = False

    async def ping(self) -> None:
        if self._answers:
            self._came.put_nowait(WSMessage(WSMsgType.PONG, b"", None))

    async def receive(self) -> WSMessage:
        return await self._came.get()

    async def close(self) -> None:
        self.closed = True


class _Call:
    """A call that has no answer."""

    def __aiter__(self) -> _Call:
        return self

    async def __anext__(self) -> bytes:
        await asyncio.Event().wait()
        raise StopAsyncIteration

    def cancel(self) -> None:
        return


class _Channel:
    def stream_stream(self, _method: str) -> Any:
        return lambda *_arguments, **_options: _Call()


@pytest.mark.parametrize("answers", [True, False])
def test_a_page_that_answers_no_ping_is_given_up(answers: bool) -> None:
    async def check() -> End | None:
        return None

    async def hour() -> tuple[bool, bool, float]:
        page: Any = _Page(answers=answers)
        channel: Any = _Channel()
        loop = asyncio.get_running_loop()
        carrying = asyncio.create_task(Stream(page, check).carry(channel, "/method", ()))
        await asyncio.wait([carrying], timeout=3600.0)
        ended, seconds = carrying.done(), loop.time()
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
        return ended, page.closed, seconds

    ended, closed, seconds = run(hour())
    assert (ended, closed) == (not answers, not answers)
    assert seconds == (3600.0 if answers else HEARTBEAT_SECONDS)
