"""The state that was sent to an agent is advanced by some sessions at a time,
and says the same as a comparison of everything.
"""

from __future__ import annotations

import random

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch.sent_state import DesiredState, SentState, difference

SESSIONS = [f"s{number}" for number in range(5)]


def an_attempt(session: str, epoch: int, goal: pb.Goal.ValueType) -> pb.Attempt:
    return pb.Attempt(id=f"{session}.{epoch}", session_id=session, kernel_id=session, number=epoch, goal=goal)


def some(choice: random.Random) -> DesiredState:
    attempts = [
        an_attempt(session, choice.randint(1, 2), choice.choice([pb.GOAL_HELD, pb.GOAL_RUNNING]))
        for session in SESSIONS
        if choice.random() < 0.6
    ]
    networks = {
        session: pb.Network(session_id=session, vni=choice.randint(0, 2), subnet="10.0.0.0/24", mtu=1500)
        for session in SESSIONS
        if choice.random() < 0.4
    }
    return DesiredState({attempt.id: attempt for attempt in attempts}, networks)


def of(desired: DesiredState, sessions: set[str]) -> DesiredState:
    return DesiredState(
        {key: attempt for key, attempt in desired.attempts.items() if attempt.session_id in sessions},
        {key: network for key, network in desired.networks.items() if key in sessions},
    )


def merged(desired: DesiredState, newer: DesiredState, sessions: set[str]) -> DesiredState:
    rest = of(desired, set(SESSIONS) - sessions)
    return DesiredState({**rest.attempts, **newer.attempts}, {**rest.networks, **newer.networks})


def test_some_sessions_at_a_time_and_all_at_once_agree() -> None:
    choice = random.Random(7)
    for _ in range(200):
        before = some(choice)
        sent = SentState(before)
        for _ in range(6):
            sessions = set(choice.sample(SESSIONS, choice.randint(0, 5)))
            part = of(some(choice), sessions)
            after = merged(before, part, sessions)
            step, whole = sent.advance(part, sessions), difference(before, after)
            assert {attempt.id: attempt for attempt in step.attempts} == {a.id: a for a in whole.attempts}
            assert set(step.removed_attempts) == set(whole.removed_attempts)
            assert {network.session_id for network in step.networks} == {n.session_id for n in whole.networks}
            assert set(step.removed_networks) == set(whole.removed_networks)
            before = after
        assert not sent.advance(before, None)
        assert set(sent.advance(DesiredState(), None).removed_attempts) == set(before.attempts)
