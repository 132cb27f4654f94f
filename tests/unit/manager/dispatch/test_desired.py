"""What is sent when a wish changes, and what a silence means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.manager.dispatch import convert
from retinue.manager.domain.agents.liveness import verdict
from retinue.manager.domain.agents.timers import Timers
from retinue.manager.domain.session.attempts import AttemptSpec, DesiredNetwork, DesiredState, difference
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.states import Goal
from retinue.types.v1 import isolation_pb2

ATTEMPT = AttemptSpec(
    "k.1", "s", "k", 1, Goal.HELD, 10.0, "main1", "", (), {}, {"cpu": 1000}, networked=True, egress=False
)
NETWORK = DesiredNetwork("s", 7, "10.128.0.0/28", 1450, ())


def test_nothing_changed_is_nothing_sent() -> None:
    wish = DesiredState({"k.1": ATTEMPT}, {"s": NETWORK})
    assert not difference(wish, DesiredState(dict(wish.attempts), dict(wish.networks)))


def test_agents_are_sent_what_an_attempt_is() -> None:
    for isolation, number in (
        (Isolation.PROCESS, isolation_pb2.ISOLATION_PROCESS),
        (Isolation.CONTAINER, isolation_pb2.ISOLATION_CONTAINER),
        (Isolation.VM, isolation_pb2.ISOLATION_VM),
        (None, isolation_pb2.ISOLATION_UNSPECIFIED),
    ):
        desired = DesiredState({"a": replace(ATTEMPT, isolation=isolation)})
        (message,) = convert.snapshot(desired).snapshot.attempts
        assert message.isolation == number


def test_only_what_changed_is_sent() -> None:
    other = replace(ATTEMPT, id="o.1")
    released = replace(ATTEMPT, goal=Goal.RUNNING)
    step = difference(DesiredState({"k.1": ATTEMPT, "o.1": other}, {"s": NETWORK}), DesiredState({"k.1": released}))
    assert (step.attempts, step.removed_attempts, step.networks, step.removed_networks) == (
        (released,),
        ("o.1",),
        (),
        ("s",),
    )


@pytest.mark.parametrize(
    ("silence", "state"),
    [(0, "ALIVE"), (19.9, "ALIVE"), (20, "SUSPECT"), (59.9, "SUSPECT"), (60, "LOST"), (1e6, "LOST")],
)
def test_verdicts(silence: float, state: str) -> None:
    assert verdict(silence, Timers()) == state
