"""Blocking work is not left to itself when its caller is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from retinue.devtools.threads import in_thread


async def test_a_cancelled_caller_waits_for_the_thread() -> None:
    begun, resume, made = threading.Event(), threading.Event(), list[str]()

    def make() -> None:
        begun.set()
        resume.wait()
        made.append("made")

    work = asyncio.create_task(in_thread(make))
    await asyncio.to_thread(begun.wait)
    work.cancel()
    await asyncio.sleep(0)
    work.cancel()
    # It would have ended within a few turns of the loop.
    for _ in range(10):
        await asyncio.sleep(0)
    assert not work.done()
    resume.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert made == ["made"]


async def test_values_and_errors_come_through() -> None:
    assert await in_thread(int, "12") == 12
    with pytest.raises(ValueError, match="invalid literal"):
        await in_thread(int, "x")
