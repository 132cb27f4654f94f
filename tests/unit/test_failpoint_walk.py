"""What the walk of the failpoints makes of the logs of processes."""

from __future__ import annotations

import pytest

from tests.failpoints.walk import is_cancelled_start

CANCELLED = """
2026-01-01 00:00:00.000 warning retinue.rpc.failpoints: failpoint engine.request: cancel
2026-01-01 00:00:00.000 critical retinue.rpc.logs: the program ends by an error of its own
    Traceback (most recent call last):
    asyncio.exceptions.CancelledError
"""
SERVES = "2026-01-01 00:00:00.000 info    retinue.agent.daemon: agent n1 listens at 192.0.2.1:7450\n"


@pytest.mark.parametrize(
    ("life", "expected"),
    [
        (CANCELLED, True),
        # One that serves outlives it.
        (SERVES + CANCELLED, False),
        (CANCELLED.replace(": cancel", ": error"), False),
        (CANCELLED.replace("asyncio.exceptions.CancelledError", "ValueError: 1"), False),
    ],
)
def test_only_what_a_failpoint_cancels_before_it_serves_may_end(life: str, expected: bool) -> None:
    assert is_cancelled_start(life) is expected
