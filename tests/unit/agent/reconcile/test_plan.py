"""Plans for single situations, one rule each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.agent.attempts import AttemptSpec, DesiredAttempt, Goal, ObservedAttempt, Phase
from retinue.agent.reconcile.core.plan import (
    DEFAULT_GRACE,
    Action,
    Attach,
    Create,
    Decline,
    Desired,
    EnsureNetwork,
    Identify,
    Kill,
    Observed,
    Release,
    Remove,
    RemoveNetwork,
    Stop,
    plan,
)

RUN = DesiredAttempt(AttemptSpec("k.1", "s", "k", 1, "main1"), Goal.RUNNING, 5.0)
HOLD, STOP = replace(RUN, goal=Goal.HELD), replace(RUN, goal=Goal.STOPPED)
WIRED = replace(RUN, spec=replace(RUN.spec, networked=True))
CREATED = ObservedAttempt("k.1", "s", "k", False, Phase.CREATED)
WIRED_CREATED = replace(CREATED, networked=True)
RUNNING = replace(CREATED, phase=Phase.RUNNING, start_time=1.0)
STOPPING = replace(RUNNING, phase=Phase.STOPPING, stop_grace=10.0, kill_at=100.0)
EXITED = replace(RUNNING, phase=Phase.EXITED)
FAILED = replace(CREATED, phase=Phase.FAILED)


@pytest.mark.parametrize("wanted", [RUN, HOLD, None])
def test_what_was_without_a_manager_for_too_long_is_stopped_at_once(wanted: DesiredAttempt | None) -> None:
    def steps(there: ObservedAttempt) -> list[Action]:
        desired = Desired({} if wanted is None else {"k.1": wanted}, set(), complete=False)
        return plan(desired, Observed({"k.1": there}, set(), set(), set(), {"k.1"}), 50.0)

    assert steps(RUNNING) == steps(CREATED) == [Stop("k.1", 0.0)]
    assert steps(STOPPING) == [Stop("k.1", 0.0)]
    assert steps(replace(STOPPING, stop_grace=0.0, kill_at=50.0)) == [Kill("k.1")]
    assert steps(EXITED) == []


@pytest.mark.parametrize(
    ("wanted", "there", "actions"),
    [
        (RUN, None, [Create("k.1")]),
        (HOLD, None, [Create("k.1")]),
        (STOP, None, [Decline("k.1")]),
        (HOLD, CREATED, []),
        (RUN, CREATED, [Release("k.1")]),
        (STOP, CREATED, [Stop("k.1", 5.0)]),
        (None, CREATED, [Stop("k.1", DEFAULT_GRACE)]),
        (RUN, replace(CREATED, phase=Phase.CREATING), []),
        (None, replace(CREATED, phase=Phase.CREATING), [Stop("k.1", DEFAULT_GRACE)]),
        (RUN, RUNNING, []),
        (HOLD, RUNNING, []),
        (STOP, RUNNING, [Stop("k.1", 5.0)]),
        (None, RUNNING, [Stop("k.1", DEFAULT_GRACE)]),
        (RUN, STOPPING, []),
        (STOP, replace(STOPPING, stop_grace=5.0), []),
        (replace(STOP, stop_grace=10.0), STOPPING, []),
        (replace(STOP, stop_grace=60.0), STOPPING, []),
        (replace(STOP, stop_grace=1.0), STOPPING, [Stop("k.1", 1.0)]),
        (None, STOPPING, []),
        (None, replace(STOPPING, kill_at=50.0), [Kill("k.1")]),
        (RUN, replace(STOPPING, kill_at=50.0), [Kill("k.1")]),
        (STOP, replace(STOPPING, kill_at=None), []),
        (RUN, EXITED, []),
        (STOP, EXITED, []),
        (RUN, FAILED, []),
        # The networked one: its network is neither desired nor there.
        (WIRED, None, []),
        (WIRED, WIRED_CREATED, []),
        (WIRED, replace(WIRED_CREATED, attached=True), []),
    ],
)
def test_one_attempt(wanted: DesiredAttempt | None, there: ObservedAttempt | None, actions: list[Action]) -> None:
    desired = Desired({} if wanted is None else {"k.1": wanted}, frozenset(), complete=True)
    attempts = {} if there is None else {"k.1": there}
    assert plan(desired, Observed(attempts, set(), set(), set()), 50.0) == actions


@pytest.mark.parametrize("there", [EXITED, FAILED])
def test_an_end_is_forgotten_when_it_is_settled_and_not_desired(there: ObservedAttempt) -> None:
    empty, wanted = Desired({}, frozenset(), complete=True), Desired({"k.1": RUN}, frozenset(), complete=True)
    unsettled, settled = (Observed({"k.1": there}, set(), set(), ends) for ends in (set(), {"k.1"}))
    assert plan(empty, unsettled, 0.0) == []
    assert plan(wanted, settled, 0.0) == []
    assert plan(empty, settled, 0.0) == [Remove("k.1")]
    assert plan(replace(empty, complete=False), settled, 0.0) == []


def test_network_before_attempt_and_attempt_before_network() -> None:
    desired = Desired({"k.1": WIRED}, {"s"}, complete=True)
    assert plan(desired, Observed({}, set(), set(), set()), 0.0) == [EnsureNetwork("s")]
    assert plan(desired, Observed({}, {"s"}, set(), set()), 0.0) == [EnsureNetwork("s")]
    assert plan(desired, Observed({}, {"s"}, {"s"}, set()), 0.0) == [Create("k.1")]
    assert plan(desired, Observed({"k.1": WIRED_CREATED}, {"s"}, {"s"}, set()), 0.0) == [Attach("k.1")]
    attached = replace(WIRED_CREATED, attached=True)
    assert plan(desired, Observed({"k.1": attached}, {"s"}, {"s"}, set()), 0.0) == [Release("k.1")]
    # A network that is to go takes no new attempt, and goes after the last one.
    leaving = Desired({"k.1": WIRED}, frozenset(), complete=True)
    assert plan(leaving, Observed({}, {"s"}, {"s"}, set()), 0.0) == [RemoveNetwork("s")]
    assert plan(leaving, Observed({"k.1": EXITED}, {"s"}, {"s"}, set()), 0.0) == []
    nothing = Desired({}, frozenset(), complete=True)
    assert plan(nothing, Observed({}, {"s"}, set(), set()), 0.0) == [RemoveNetwork("s")]
    assert plan(replace(nothing, complete=False), Observed({}, {"s"}, set(), set()), 0.0) == []


@pytest.mark.parametrize(
    ("mate", "released"),
    [
        (None, False),
        (replace(CREATED, id="m.1", phase=Phase.CREATING), False),
        (replace(CREATED, id="m.1"), True),
        (replace(WIRED_CREATED, id="m.1"), False),
        (replace(RUNNING, id="m.1"), True),
        (replace(EXITED, id="m.1"), True),
        (replace(FAILED, id="m.1"), False),
        (replace(STOPPING, id="m.1", start_time=None), False),
    ],
)
def test_released_with_its_mates_only(mate: ObservedAttempt | None, released: bool) -> None:
    other = DesiredAttempt(AttemptSpec("m.1", "s", "m", 1, "sub1"), Goal.RUNNING, 5.0)
    attempts = {"k.1": CREATED} | ({} if mate is None else {"m.1": mate})
    for goal, expected in ((Goal.RUNNING, released), (Goal.HELD, True), (Goal.STOPPED, True)):
        desired = Desired({"k.1": RUN, "m.1": replace(other, goal=goal)}, frozenset(), complete=True)
        actions = plan(desired, Observed(attempts, set(), set(), set()), 0.0)
        assert (Release("k.1") in actions) == expected, goal
    elsewhere = replace(other, spec=replace(other.spec, session_id="t"))
    desired = Desired({"k.1": RUN, "m.1": elsewhere}, frozenset(), complete=True)
    assert Release("k.1") in plan(desired, Observed(attempts, set(), set(), set()), 0.0)


REBUILT = replace(RUNNING, session_id="", rebuilt=True)


@pytest.mark.parametrize("there", [CREATED, RUNNING, WIRED_CREATED, REBUILT])
def test_absence_ends_only_what_it_may(there: ObservedAttempt) -> None:
    def steps(**desired: object) -> list[Action]:
        wanted = Desired({}, set(), complete=True, **desired)  # type: ignore[arg-type]
        return plan(wanted, Observed({"k.1": there}, {"other"}, {"other"}, set()), 50.0)

    absent = steps()
    if there.rebuilt:
        # Its network may be any of them.
        assert absent == []
    else:
        assert absent == [Stop("k.1", DEFAULT_GRACE), RemoveNetwork("other")]
    assert steps(absence_removes=False) == []
    assert steps(absence_removes=False, removed={"k.1"}) == [Stop("k.1", DEFAULT_GRACE)]
    assert steps(absence_removes=False, removed_networks={"other"}) == [RemoveNetwork("other")]
    assert steps(removed={"k.1"})[0] == Stop("k.1", DEFAULT_GRACE)


def test_an_ended_attempt_is_forgotten_whatever_absence_means() -> None:
    desired = Desired({}, set(), complete=True, absence_removes=False)
    assert plan(desired, Observed({"k.1": EXITED}, set(), set(), {"k.1"}), 50.0) == [Remove("k.1")]


def test_a_rebuilt_attempt_is_identified_before_anything_else_but_its_end() -> None:
    def steps(wanted: DesiredAttempt, there: ObservedAttempt) -> list[Action]:
        return plan(Desired({"k.1": wanted}, set(), complete=True), Observed({"k.1": there}, set(), set(), set()), 50.0)

    for there in (REBUILT, replace(REBUILT, phase=Phase.CREATED, start_time=None)):
        assert steps(RUN, there) == steps(HOLD, there) == [Identify("k.1")]
        assert steps(STOP, there) == [Stop("k.1", 5.0)]
    assert steps(RUN, replace(REBUILT, session_id="s")) == []
