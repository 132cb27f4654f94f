"""Cycles and dependents, against the plain definitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.domain.session.dependency_graph import DependencyKind, dependents, find_cycles, path_text
from retinue.manager.domain.session.states import ENDED_SESSION_STATES, Result, SessionState

graphs = st.integers(1, 9).flatmap(
    lambda size: st.dictionaries(st.integers(0, size - 1), st.lists(st.integers(0, size - 1), max_size=4, unique=True))
)


def reachable(parents: dict[int, list[int]], start: int) -> set[int]:
    """All that `start` depends on."""
    found: set[int] = set()
    front = list(parents.get(start, ()))
    while front:
        here = front.pop()
        if here not in found:
            found.add(here)
            front.extend(parents.get(here, ()))
    return found


@given(graphs)
def test_cycles_are_found_when_there_are_any_and_are_cycles(parents: dict[int, list[int]]) -> None:
    cycles = find_cycles(parents)
    assert bool(cycles) == any(node in reachable(parents, node) for node in parents)
    for cycle in cycles:
        assert len(set(cycle)) == len(cycle)
        for here, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert following in parents[here]
    # Without the sessions of the cycles, and those that depend on them, nothing is knotted any more.
    gone = {node for cycle in cycles for node in cycle}
    gone |= dependents(parents, gone).keys()
    assert find_cycles({node: of for node, of in parents.items() if node not in gone}) == []


@given(graphs, st.sets(st.integers(0, 8), max_size=3))
def test_dependents_are_those_that_reach_a_root(parents: dict[int, list[int]], roots: set[int]) -> None:
    found = dependents(parents, roots)
    assert found.keys() == {node for node in parents if node not in roots and reachable(parents, node) & roots}
    assert all(cause in parents[node] and (cause in roots or cause in found) for node, cause in found.items())


def test_long_chains_need_no_recursion() -> None:
    chain = {number: [number - 1] for number in range(1, 50_000)}
    assert find_cycles(chain) == []
    assert len(dependents(chain, [0])) == 49_999
    assert [len(cycle) for cycle in find_cycles({**chain, 0: [49_999]})] == [50_000]


def test_a_cycle_in_words() -> None:
    assert path_text(["a", "b"]) == "a → b → a"
    assert path_text([f"n{number}" for number in range(20)]).endswith("n6 → (12 more) → n19 → n0")


@given(st.sampled_from([None, *SessionState]), st.sampled_from([None, *Result]))
def test_an_end_is_a_success_or_a_failure_and_nothing_else_is_one(
    state: SessionState | None, result: Result | None
) -> None:
    met = {kind for kind in DependencyKind if kind.is_met(state, result)}
    if state not in ENDED_SESSION_STATES:
        assert met == set()
    else:
        success = state is SessionState.TERMINATED and result is Result.SUCCESS
        assert met == {DependencyKind.END, DependencyKind.SUCCESS if success else DependencyKind.FAILURE}
