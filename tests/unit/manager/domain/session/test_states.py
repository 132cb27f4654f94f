"""The tables of moves: complete, without dead ends, and never left once ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from retinue.manager.domain.session.states import (
    ENDED_KERNEL_STATES,
    ENDED_SESSION_STATES,
    KERNEL_MOVES,
    SESSION_MOVES,
    SESSION_OWNERS,
    KernelState,
    SessionState,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

State = TypeVar("State")


def reachable(moves: Mapping[State, frozenset[State]], start: State) -> set[State]:
    seen, open_states = {start}, [start]
    while open_states:
        for state in moves[open_states.pop()] - seen:
            seen.add(state)
            open_states.append(state)
    return seen


def test_every_state_is_in_its_table() -> None:
    assert set(SESSION_MOVES) == set(SessionState)
    assert set(KERNEL_MOVES) == set(KernelState)


def test_every_state_is_reachable() -> None:
    assert reachable(SESSION_MOVES, SessionState.PENDING) == set(SessionState)
    assert reachable(KERNEL_MOVES, KernelState.PENDING) == set(KernelState)


@pytest.mark.parametrize("state", list(SessionState))
def test_every_session_state_has_a_way_to_an_end(state: SessionState) -> None:
    assert reachable(SESSION_MOVES, state) & ENDED_SESSION_STATES


@pytest.mark.parametrize("state", list(KernelState))
def test_every_kernel_state_has_a_way_to_an_end(state: KernelState) -> None:
    assert reachable(KERNEL_MOVES, state) & ENDED_KERNEL_STATES


def test_ended_states_are_never_left() -> None:
    assert {SessionState.TERMINATED, SessionState.CANCELLED} == ENDED_SESSION_STATES
    assert {KernelState.TERMINATED, KernelState.CANCELLED} == ENDED_KERNEL_STATES


def test_every_live_session_state_has_an_owner() -> None:
    assert set(SESSION_OWNERS) == set(SessionState) - ENDED_SESSION_STATES
