"""Waiting: the first value that is wanted, or the last that was not."""

from __future__ import annotations

import asyncio

import pytest

from tests.link.virtual_time import StuckError, run
from tests.support.eventually import eventually


def test_the_first_value_that_is_wanted_is_returned() -> None:
    values = iter([0, 1, 2, 3])
    assert run(eventually(lambda: next(values), lambda value: value > 1)) == 2

    async def look() -> int:
        return next(values)

    assert run(eventually(look)) == 3


def test_the_last_value_is_named_when_none_is_wanted() -> None:
    with pytest.raises(AssertionError, match="still 'late' after 300 s"):
        run(eventually(lambda: "late", lambda value: value == "there"))

    async def hangs() -> bool:
        await asyncio.Event().wait()
        return True

    with pytest.raises(AssertionError, match="still 'no value' after 5 s"):
        run(eventually(hangs, seconds=5.0))


def test_tasks_that_wait_for_one_another_or_for_nothing_are_found_out() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    for stuck in (waits, spins):
        with pytest.raises(StuckError):
            run(stuck())


def test_errors_are_raised_unless_they_mean_not_yet() -> None:
    def look() -> int:
        return [].pop()

    with pytest.raises(IndexError):
        run(eventually(look))
    with pytest.raises(AssertionError, match="IndexError"):
        run(eventually(look, ignoring=IndexError))

    def times_out() -> int:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        run(eventually(times_out))
