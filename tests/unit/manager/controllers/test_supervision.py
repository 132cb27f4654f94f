from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from retinue.manager import supervision
from retinue.manager.domain.session.attempts import TermOverError
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.manager.supervision import PartInterruptedError, all_or_each, supervise
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize("over", [NotLeader("another leads"), TermOverError("another leads")])
async def test_a_part_is_run_again_whatever_it_failed_with_until_the_term_ends(over: Exception) -> None:
    failures = [StoreUnavailable("gone"), ExceptionGroup("several", [StoreUnavailable("gone"), KeyError("odd")])]
    failures += [ValueError("a mistake"), ExceptionGroup("the last", [ValueError("a mistake"), over])]
    runs = iter(failures)

    async def part() -> None:
        raise next(runs)

    with pytest.raises(NotLeader):
        await supervise("part", part, pause=0)
    assert next(runs, None) is None


async def test_a_part_that_returns_is_run_again() -> None:
    runs = 0

    async def part() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            raise NotLeader("another leads")

    with pytest.raises(NotLeader):
        await supervise("part", part, pause=0)


async def test_a_part_that_only_itself_cancels_is_run_again() -> None:
    """A group of tasks takes one that ends with a cancellation for one that is done."""
    runs = 0

    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def part() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            raise NotLeader("another leads")
        await cancelled()

    running = asyncio.create_task(supervise("part", part, pause=0))
    await asyncio.wait((running,))
    assert (runs, running.cancelled()) == (3, False)
    with pytest.raises(NotLeader):
        running.result()


async def test_cancelled_while_a_group_fails_it_ends() -> None:
    begun = asyncio.Event()

    async def fail_when_cancelled() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StoreUnavailable("gone") from None

    async def part() -> None:
        assert not begun.is_set(), "it began again"
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_when_cancelled())

    running = asyncio.create_task(supervise("part", part, pause=0))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_step_that_fails_for_all_is_taken_for_each() -> None:
    taken: list[int] = []

    async def step(items: Sequence[int]) -> None:
        if 3 in items:
            raise ValueError("odd")
        taken.extend(items)

    await all_or_each("a number", [1, 2], step)
    await all_or_each("a number", [3, 4, 5], step)
    assert taken == [1, 2, 4, 5]


@pytest.mark.parametrize("error", [NotLeader("another leads"), StoreUnavailable("gone")])
async def test_a_step_ends_with_the_term_or_the_database(error: Exception) -> None:
    steps = 0

    async def step(_items: Sequence[int]) -> None:
        nonlocal steps
        steps += 1
        raise error

    with pytest.raises(type(error)):
        await all_or_each("a number", [1, 2], step)
    assert steps == 1


async def test_a_part_that_fails_is_a_line_a_minute_and_in_the_metrics_until_it_is_sound(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "retinue.manager.supervision")
    runs, shown = 0, list[float | None]()
    sound = asyncio.Event()

    async def part() -> None:
        nonlocal runs
        runs += 1
        shown.append(REGISTRY.get_sample_value("retinue_failing", {"part": "a part"}))
        if runs == 5:
            monkeypatch.setattr(supervision, "SOUND_SECONDS", 0.0)
        if runs <= 5:
            raise ValueError(f"a mistake at {runs}")
        sound.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(supervise("a part", part, pause=0))
    try:
        await sound.wait()
        await eventually(lambda: "no longer so" in caplog.text)
        assert REGISTRY.get_sample_value("retinue_failing", {"part": "a part"}) == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert shown == [0, 1, 1, 1, 1, 1]
    assert [(record.levelname, record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
        ("ERROR", "a part fails, and is tried again: ValueError('a mistake at 1')", True),
        ("INFO", "no longer so: a part fails (5 times)", False),
    ]


async def test_a_part_that_was_only_interrupted_does_not_fail(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([PartInterruptedError(), ExceptionGroup("both", [PartInterruptedError()]), NotLeader("over")])

    async def part() -> None:
        raise next(failures)

    with pytest.raises(NotLeader):
        await supervise("part", part, pause=0)
    assert not caplog.records


async def test_parts_of_a_term_that_has_ended_do_not_fail() -> None:
    failures = iter([ValueError("a mistake"), NotLeader("another leads")])

    async def part() -> None:
        raise next(failures)

    with pytest.raises(NotLeader):
        await supervise("another part", part, pause=0)
    assert REGISTRY.get_sample_value("retinue_failing", {"part": "another part"}) == 0
