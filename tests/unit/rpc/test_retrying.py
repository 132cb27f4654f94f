"""What fails and is tried again is said once, with the same words everywhere."""

from __future__ import annotations

import logging

import pytest

from retinue.rpc.core.retries import MAX_ERROR, after_failure
from retinue.rpc.retrying import Retrying

WHERE = "retinue.agent.main"


def test_failures_are_logged_once_for_each_error_and_shown_at_powers_of_two(caplog: pytest.LogCaptureFixture) -> None:
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
        ("WARNING", "the disk is not read, and is tried again: gone"),
        ("INFO", "no longer so: the disk is not read (4 times)"),
    ]


def test_an_error_without_words_has_a_name_and_a_long_one_is_cut() -> None:
    assert after_failure(None, TimeoutError(), 1.0).error == "TimeoutError()"
    assert len(after_failure(None, "x" * 10_000, 1.0).error) == MAX_ERROR
