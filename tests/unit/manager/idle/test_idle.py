"""What an idle policy makes of a session, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.manager.domain.idle.policy import (
    NOTHING,
    Checker,
    ExtensionRefusedError,
    IdlePolicy,
    SessionObservation,
    Status,
    evaluate,
    extension,
    spell,
    unwatched,
    warning_text,
)
from retinue.manager.domain.idle.utilization import Reading
from retinue.manager.domain.session.states import SessionType
from retinue.manager.idle.activity import pace
from retinue.manager.store.sessions.idle import decode_policy, encode_policy

HOUR = 3600.0
START = 1_000_000.0
IA, UT, LT = Checker.INTERACTION, Checker.UTILIZATION, Checker.LIFETIME
POLICY = IdlePolicy(interaction=HOUR, warning=600.0)


def seen(kind: SessionType = SessionType.INTERACTIVE, **values: Any) -> SessionObservation:
    return SessionObservation(kind, START, **values)


def reading(remaining: float, *, at: float = START) -> Reading:
    return Reading(at, 60.0, remaining, {"cpu": 1.234, "mem": 40.0}, 1800.0)


@pytest.mark.parametrize(
    ("policy", "known", "after", "left", "status"),
    [
        (POLICY, seen(), 0, HOUR, Status.COUNTING),
        (POLICY, seen(), 600, HOUR - 600, Status.COUNTING),
        (POLICY, seen(interaction=START + 500), 600, HOUR - 100, Status.COUNTING),
        # An interaction of an earlier run does not count for this one.
        (POLICY, seen(interaction=START - 500), 600, HOUR - 600, Status.COUNTING),
        (POLICY, seen(paused=500.0), 600, HOUR - 100, Status.COUNTING),
        (POLICY, seen(extension_end_time=START + 2 * HOUR), 600, 2 * HOUR - 600, Status.COUNTING),
        (POLICY, seen(extension_end_time=START + HOUR / 2), 600, HOUR - 600, Status.COUNTING),
        (POLICY, seen(reachable=False), 2 * HOUR, 0, Status.NO_DATA),
        (IdlePolicy(interaction=HOUR, grace=900.0), seen(), 600, HOUR + 300, Status.GRACE),
        (IdlePolicy(interaction=HOUR, grace=900.0), seen(), 901, HOUR - 1, Status.COUNTING),
        (IdlePolicy(lifetime=HOUR, grace=900.0), seen(), 600, HOUR - 600, Status.COUNTING),
        (IdlePolicy(lifetime=HOUR), seen(interaction=START + 600, reachable=False), 600, HOUR - 600, Status.COUNTING),
        (IdlePolicy(lifetime=HOUR), seen(SessionType.BATCH), 600, HOUR - 600, Status.COUNTING),
        (IdlePolicy(window=HOUR, thresholds={"cpu": 5.0}), seen(reading=reading(1800)), 30, 1800, Status.COUNTING),
        (IdlePolicy(window=HOUR, thresholds={"cpu": 5.0}), seen(reading=reading(0)), 61, 0, Status.NO_DATA),
        (IdlePolicy(window=HOUR, thresholds={"cpu": 5.0}), seen(), 10 * HOUR, None, Status.NO_DATA),
        (IdlePolicy(window=HOUR, thresholds={"cpu": 5.0}, grace=60.0), seen(reading=reading(0)), 30, HOUR + 30, Status.GRACE),
    ],
)  # fmt: skip
def test_what_is_left(
    policy: IdlePolicy, known: SessionObservation, after: float, left: float | None, status: Status
) -> None:
    (check,) = evaluate(policy, known, START + after).checks
    assert (check.remaining, check.status) == (left, status)
    assert evaluate(policy, known, START + after).end is None


@pytest.mark.parametrize(
    ("kind", "checkers"),
    [
        (SessionType.INTERACTIVE, [IA, UT, LT]),
        (SessionType.BATCH, [UT, LT]),
        (SessionType.INFERENCE, []),
        (SessionType.SYSTEM, [Checker.INTERACTION]),
    ],
)
def test_who_is_looked_at(kind: SessionType, checkers: list[Checker]) -> None:
    policy = IdlePolicy(interaction=1.0, window=1.0, thresholds={"cpu": 1.0}, lifetime=1.0)
    verdict = evaluate(policy, seen(kind, reading=reading(0, at=START + HOUR)), START + HOUR)
    assert [check.checker for check in verdict.checks] == checkers


def test_incomplete_and_exempt_checkers_end_nothing() -> None:
    policy = IdlePolicy(interaction=1.0, window=1.0, exempt=frozenset({IA}))
    assert evaluate(policy, seen(), START + HOUR).checks == ()
    assert evaluate(NOTHING, seen(), START + HOUR).checks == ()


BOTH = IdlePolicy(interaction=HOUR, window=HOUR / 2, thresholds={"cpu": 5.0}, warning=600.0)


@pytest.mark.parametrize(
    ("known", "left"),
    [
        # It computes, and nobody uses it.
        (seen(reading=reading(1500, at=START + 2 * HOUR)), 1500),
        # It does nothing, and a user is in it.
        (seen(interaction=START + 2 * HOUR - 60, reading=reading(0, at=START + 2 * HOUR)), HOUR - 60),
        # One of them is not known.
        (seen(), None),
        (seen(reachable=False, reading=reading(0, at=START + 2 * HOUR)), None),
        (seen(reading=reading(0)), None),
    ],
)
def test_a_session_that_is_used_or_computes_is_not_idle(known: SessionObservation, left: float | None) -> None:
    verdict = evaluate(BOTH, known, START + 2 * HOUR)
    assert (verdict.warn, verdict.end) == ((), None)
    if left is not None:
        assert [check.remaining for check in verdict.checks] == [left, left]
    alone = evaluate(BOTH.then(IdlePolicy(any_checker=True, warning=0.0)), known, START + 2 * HOUR)
    if left is not None:
        assert alone.end is not None


def test_a_session_that_is_neither_used_nor_computes_ends_after_its_warnings() -> None:
    idle = seen(reading=reading(0, at=START + 2 * HOUR))
    verdict = evaluate(BOTH, idle, START + 2 * HOUR)
    assert [(check.checker, check.remaining) for check in verdict.warn] == [(IA, 600.0), (UT, 600.0)]
    warned = {IA: START + 2 * HOUR, UT: START + 2 * HOUR}
    later = seen(reading=reading(0, at=START + 2 * HOUR + 600), warned=warned)
    assert evaluate(BOTH, later, START + 2 * HOUR + 599).end is None
    end = evaluate(BOTH, later, START + 2 * HOUR + 600).end
    assert end is not None
    assert end.checker is IA
    unused, used_little = "it was not used for 2 h 10 min of at most 1 h", "it used cpu 1.23 % (threshold 5 %)"
    assert end.measured == f"{unused}, and {used_little} of what it holds over 30 min"
    used = seen(interaction=START + 2 * HOUR, reading=idle.reading, warned=warned)
    assert evaluate(BOTH, used, START + 2 * HOUR).take_back == {IA, UT}


def test_the_lifetime_is_a_limit_by_itself_and_so_is_a_checker_that_looks_alone() -> None:
    busy = seen(interaction=START + HOUR, reading=reading(1800, at=START + HOUR))
    policy = BOTH.then(IdlePolicy(lifetime=HOUR, warning=0.0))
    end = evaluate(policy, busy, START + HOUR).end
    assert end is not None
    assert end.checker is LT
    for kind, checker in ((SessionType.BATCH, UT), (SessionType.SYSTEM, IA)):
        alone = seen(kind, reading=reading(0, at=START + HOUR))
        found = evaluate(policy.then(IdlePolicy(lifetime=10 * HOUR)), alone, START + HOUR).end
        assert found is not None
        assert found.checker is checker


def test_a_session_is_warned_first_and_ended_no_sooner_than_promised() -> None:
    before = evaluate(POLICY, seen(), START + HOUR - 601)
    assert (before.warn, before.end) == ((), None)
    warned_at = START + HOUR - 600
    verdict = evaluate(POLICY, seen(), warned_at)
    assert [check.checker for check in verdict.warn] == [IA]
    assert verdict.end is None
    text = warning_text(verdict.warn[0], warned_at)
    assert text == "it was not used for 50 min of at most 1 h; it ends at 1970-01-12 14:46:40 UTC, unless that changes"
    last = evaluate(POLICY, seen(warned={IA: warned_at}), START + HOUR - 1)
    assert (last.warn, last.end, last.checks[0].status) == ((), None, Status.WARNED)
    end = evaluate(POLICY, seen(warned={IA: warned_at}), START + HOUR).end
    assert end is not None
    assert (end.checker, end.measured) == (IA, "it was not used for 1 h of at most 1 h")


def test_a_policy_that_comes_late_warns_all_the_same() -> None:
    now = START + 50 * HOUR
    verdict = evaluate(POLICY, seen(), now)
    assert verdict.end is None
    assert verdict.warn[0].remaining == 600
    assert evaluate(POLICY, seen(warned={IA: now}), now + 599).end is None
    assert evaluate(POLICY, seen(warned={IA: now}), now + 600).end is not None


def test_without_warnings_it_ends_at_once() -> None:
    policy = IdlePolicy(interaction=HOUR, warning=0.0)
    assert evaluate(policy, seen(), START + HOUR - 1).end is None
    verdict = evaluate(policy, seen(), START + HOUR)
    assert verdict.end is not None
    assert verdict.warn == ()


def test_a_warning_is_never_longer_than_half_of_the_time() -> None:
    assert IdlePolicy(interaction=10.0).lead(10.0) == 5.0
    assert IdlePolicy(interaction=10.0, warning=2.0).lead(10.0) == 2.0
    assert IdlePolicy().lead(10 * HOUR) == 600.0


def test_use_takes_a_warning_back_and_a_little_use_does_not() -> None:
    warned = {IA: START + 3000}
    used = evaluate(POLICY, seen(interaction=START + 3100, warned=warned), START + 3101)
    assert used.take_back == {IA}
    assert used.end is None
    policy = IdlePolicy(window=HOUR, thresholds={"cpu": 5.0}, warning=600.0)
    for left, back in ((601.0, False), (749.0, False), (751.0, True)):
        known = seen(reading=reading(left), warned={UT: START})
        assert (UT in evaluate(policy, known, START + 1).take_back) is back, left


def test_what_is_not_known_ends_nothing_and_takes_the_warning_back() -> None:
    now = START + 2 * HOUR
    gone = evaluate(POLICY, seen(reachable=False, warned={IA: START + 3000}), now)
    assert (gone.end, gone.take_back) == (None, {IA})
    policy = IdlePolicy(window=HOUR, thresholds={"cpu": 5.0}, warning=0.0)
    assert evaluate(policy, seen(reading=reading(0.0, at=now - 59)), now).end is not None
    assert evaluate(policy, seen(reading=reading(0.0, at=now - 61)), now).end is None


def test_a_warning_of_a_checker_that_is_gone_is_taken_back() -> None:
    assert evaluate(NOTHING, seen(warned={LT: START}), START + 1).take_back == {LT}


def test_the_end_says_what_was_measured() -> None:
    policy = IdlePolicy(window=HOUR, thresholds={"cpu": 5.0, "mem": 50.0}, lifetime=100 * HOUR, warning=0.0)
    end = evaluate(policy, seen(SessionType.BATCH, reading=reading(0.0)), START + 1).end
    assert end is not None
    assert end.measured == (
        "it used cpu 1.23 % (threshold 5 %), mem 40 % (threshold 50 %) of what it holds over 30 min"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "kind", "duration", "until"),
    [
        (POLICY, SessionType.INTERACTIVE, None, None),
        (IdlePolicy(interaction=HOUR, extension=HOUR), SessionType.INTERACTIVE, HOUR, 600 + HOUR),
        # Of the lifetime, the bound is that of the session's whole life.
        (IdlePolicy(lifetime=HOUR, extension=HOUR), SessionType.BATCH, 2 * HOUR - 600, 2 * HOUR),
        (IdlePolicy(interaction=HOUR, lifetime=HOUR, extension=HOUR), SessionType.INTERACTIVE, HOUR, 600 + HOUR),
    ],
)
def test_how_long_an_owner_may_keep_it(
    policy: IdlePolicy, kind: SessionType, duration: float | None, until: float | None
) -> None:
    """`until` counts from its start."""
    assert extension(policy, seen(kind), START + 600, duration) == (None if until is None else START + until)


@pytest.mark.parametrize(
    ("policy", "kind", "duration", "most"),
    [
        (IdlePolicy(interaction=HOUR, extension=HOUR), SessionType.INTERACTIVE, HOUR + 1, HOUR),
        (IdlePolicy(interaction=HOUR), SessionType.INTERACTIVE, 1.0, 0.0),
        (IdlePolicy(lifetime=HOUR, extension=HOUR), SessionType.BATCH, 2 * HOUR, 2 * HOUR - 600),
        (IdlePolicy(interaction=HOUR, lifetime=HOUR / 2, extension=HOUR), SessionType.INTERACTIVE, HOUR + 1, HOUR),
        (IdlePolicy(lifetime=HOUR), SessionType.BATCH, None, HOUR - 600),
        (IdlePolicy(lifetime=300.0), SessionType.BATCH, 1.0, 0.0),
        (POLICY, SessionType.BATCH, None, 0.0),
        (NOTHING, SessionType.INTERACTIVE, 1.0, 0.0),
    ],
)
def test_what_an_owner_may_not(policy: IdlePolicy, kind: SessionType, duration: float | None, most: float) -> None:
    with pytest.raises(ExtensionRefusedError) as raised:
        extension(policy, seen(kind), START + 600, duration)
    assert raised.value.most == most


def test_what_was_granted_stays() -> None:
    known = seen(extension_end_time=START + 5000)
    assert extension(IdlePolicy(interaction=HOUR, extension=HOUR), known, START + 600, 10.0) == START + 5000
    assert extension(POLICY, known, START + 600, None) == START + 5000


def test_merging_by_field() -> None:
    group = IdlePolicy(interaction=HOUR, lifetime=2 * HOUR, window=60.0, thresholds={"cpu": 5.0, "mem": 9.0})
    user = IdlePolicy(interaction=8 * HOUR, thresholds={"cpu": 1.0}, exempt=frozenset({LT}))
    merged = group.then(user)
    assert merged == IdlePolicy(
        interaction=8 * HOUR, lifetime=2 * HOUR, window=60.0, thresholds={"cpu": 1.0, "mem": 9.0}, exempt=frozenset({LT})
    )  # fmt: skip
    assert [merged.limit(checker) for checker in Checker] == [8 * HOUR, 60.0, None]
    assert decode_policy(encode_policy(merged)) == merged


@pytest.mark.parametrize(
    ("before", "now", "elapsed", "lost"),
    [
        (None, 100.0, 0.0, 0.0),
        (100.0, 105.0, 5.0, 0.0),
        (100.0, 105.9, 5.0, 0.0),
        # A new leader.
        (100.0, 160.0, 0.0, 60.0),
        # The database's clock was set.
        (100.0, 3705.0, 5.0, 3600.0),
        (3600.0, 5.0, 5.0, 0.0),
        # The process stood still.
        (100.0, 700.0, 600.0, 600.0),
    ],
)
def test_time_without_a_listener(before: float | None, now: float, elapsed: float, lost: float) -> None:
    assert unwatched(before, now, elapsed, 20.0) == lost


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.26, "1.3 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (5400, "1 h 30 min"), (90061, "1 d 1 h")],
)
def test_spans_in_words(seconds: float, text: str) -> None:
    assert spell(seconds) == text


@pytest.mark.parametrize(
    ("known", "after", "changed", "ends"),
    [
        (seen(interaction=START + 100), 105, 104, False),
        # Nothing exchanged under the timeouts of before can be unnoted any more.
        (seen(interaction=START + 100), 121, 104, True),
        # A first exchange after a silence is noted at once, whatever the pace.
        (seen(interaction=START + 70), 105, 104, True),
        (seen(), 105, 104, True),
        # It was never noted at another pace.
        (seen(interaction=START + 100), 105, -1, True),
        (seen(interaction=START + 100), 105, None, True),
    ],
)
def test_a_new_timeout_waits_for_what_is_not_noted_yet(
    known: SessionObservation, after: float, changed: float | None, *, ends: bool
) -> None:
    now = START + after
    verdict = evaluate(
        IdlePolicy(interaction=4.0, warning=0.0), known, now, None if changed is None else START + changed
    )
    assert (verdict.end is not None) is ends
    # It holds off no other checker.
    lifetime = IdlePolicy(interaction=4.0, lifetime=60.0, warning=0.0)
    assert evaluate(lifetime, known, now, START + 104).end is not None


def test_the_pace_of_writing_is_a_part_of_what_the_policy_waits() -> None:
    assert pace(None, None) == 15.0
    assert pace(7200.0, None) == 15.0
    assert pace(8.0, 3600.0) == 2.0
