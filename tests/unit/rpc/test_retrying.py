"""What fails and is tried again is said once a minute, with the same words everywhere."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY

from retinue.rpc.core.retries import MAX_ERROR, after_failure
from retinue.rpc.retrying import Retrying, keep

if TYPE_CHECKING:
    import pytest

WHERE = "retinue.agent.main"


def test_failures_are_logged_once_a_minute_and_shown_at_powers_of_two(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, WHERE)
    texts: list[str] = []
    times = iter(range(1_000_000_000, 2_000_000_000))
    trying = Retrying("the disk is not read", logging.getLogger(WHERE), changed=texts.append, clock=times.__next__)
    trying.succeed()
    assert (trying.text, texts) == ("", [])
    for error in (OSError("busy"), OSError("busy"), OSError("busy"), OSError("gone")):
        trying.fail(error)
    since = "since 2001-09-09 01:46:40 UTC, and is tried again"
    assert texts == [
        f"the disk is not read: busy; failed once {since}",
        f"the disk is not read: busy; failed 2 times or more {since}",
        f"the disk is not read: gone; failed 4 times or more {since}",
    ]
    trying.succeed()
    assert (trying.text, texts[-1]) == ("", "")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "the disk is not read, and is tried again: busy"),
        ("INFO", "no longer so: the disk is not read (4 times)"),
    ]


def test_an_error_whose_words_differ_each_time_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, WHERE)
    now = 1_000_000_000.0
    trying = Retrying("the disk is not read", logging.getLogger(WHERE), level=logging.ERROR, clock=lambda: now)
    for _ in range(121):
        trying.fail(OSError(f"at {now:.0f}"))
        now += 1.0
    again = "since 2001-09-09 01:46:40 UTC, and is tried again"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "the disk is not read, and is tried again: at 1000000000"),
        ("ERROR", f"the disk is not read: at 1000000060; failed 61 times or more {again}"),
        ("ERROR", f"the disk is not read: at 1000000120; failed 121 times or more {again}"),
    ]


def test_a_clock_that_is_set_back_silences_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, WHERE)
    times = iter((1_000_000_000, 1_000_000_001, 900_000_000))
    trying = Retrying("the disk is not read", logging.getLogger(WHERE), clock=times.__next__)
    for _ in range(3):
        trying.fail("busy")
    assert len(caplog.records) == 2


def test_a_part_that_fails_is_in_the_metrics_until_it_succeeds() -> None:
    trying = Retrying("the disk is not read", logging.getLogger(WHERE), part="disk of a test")

    def shown() -> float | None:
        return REGISTRY.get_sample_value("retinue_failing", {"part": "disk of a test"})

    assert shown() == 0
    trying.fail("busy")
    trying.fail("busy")
    assert shown() == 1
    trying.succeed()
    assert shown() == 0


def test_an_error_that_was_not_foreseen_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    trying = Retrying("the disk is not read", logging.getLogger(WHERE))
    trying.fail("a mistake", unforeseen=ValueError("a mistake"))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


def test_an_error_without_words_has_a_name_and_a_long_one_is_cut() -> None:
    assert after_failure(None, TimeoutError(), 1.0).error == "TimeoutError()"
    assert len(after_failure(None, "x" * 10_000, 1.0).error) == MAX_ERROR


async def test_a_part_is_run_again_whatever_it_ended_with(caplog: pytest.LogCaptureFixture) -> None:
    """A group of tasks would forget one that ends with a cancellation, and end for one that fails."""
    runs: list[int] = []
    enough = asyncio.Event()

    async def part() -> None:
        runs.append(len(runs))
        match runs[-1]:
            case 0:
                raise OSError("the disk fails")
            case 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            case 3:
                enough.set()
                await asyncio.Event().wait()

    kept = asyncio.create_task(keep("a part", part, logging.getLogger("test"), pause=0))
    await enough.wait()
    assert REGISTRY.get_sample_value("retinue_failing", {"part": "a part"}) == 1
    kept.cancel()
    await asyncio.wait((kept,))
    assert (kept.cancelled(), runs) == (True, [0, 1, 2, 3])
    assert "a part fails, and is tried again: OSError('the disk fails')" in caplog.text
