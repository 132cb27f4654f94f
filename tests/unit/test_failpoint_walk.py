"""What the walk of the failpoints makes of the logs of processes."""

from __future__ import annotations

import random

import pytest

from retinue.rpc.failpoints import THREAD_ACTIONS, Action
from tests.failpoints.walk import KILLS, KILLS_OF_MANAGER, Pick, is_cancelled_start, picks_of, rounds_of

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


def test_no_process_is_killed_where_another_kill_leaves_the_same() -> None:
    commit, statement, message, thread = "store.commit@m.f", "store.execute@m.f", "link.write.ack", "netlink.SetLink"
    found = picks_of([commit, statement, message, thread])
    actions = {point: {pick.action for pick in found if pick.point == point} for point in (commit, statement, message)}
    assert actions == {
        commit: set(Action) - {Action.KILL},
        statement: set(Action) - set(KILLS),
        message: set(Action),
    }
    assert {pick.action for pick in found if pick.point == thread} == set(THREAD_ACTIONS)


def test_a_round_has_each_point_once_and_all_rounds_have_every_pick() -> None:
    picks = picks_of(
        [f"{layer}.f{number}" for layer in ("store.commit@m", "link.write", "netlink") for number in range(9)]
    )
    rounds = rounds_of(picks, random.Random(1))
    assert sorted(pick for picked in rounds for pick in picked) == sorted(picks)
    assert all(len({pick.point for pick in picked}) == len(picked) for picked in rounds)
    assert max(sum(pick.kills_manager for pick in picked) for picked in rounds) <= KILLS_OF_MANAGER


@pytest.mark.parametrize("text", ["store.commit@m.f=kill-after", "store.commit@m.f=kill-after,"])
def test_a_pick_is_read_as_reports_have_it(text: str) -> None:
    assert Pick.parse(text) == Pick("store.commit@m.f", Action.KILL_AFTER)
