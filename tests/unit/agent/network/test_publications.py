"""Numbers of published ports: kept, given up, resting, and read back."""

from __future__ import annotations

import pytest

from retinue.agent.network.core.publications import (
    LEASED_NUMBERS,
    MAX_LEASED,
    NUMBERS,
    PORTS,
    REST,
    Publications,
    from_values,
    to_values,
)
from retinue.agent.network.errors import NetworkError, PortsExhaustedError


def first(numbers: object) -> int:
    return min(numbers)  # type: ignore[call-overload, no-any-return]


def test_an_attempt_keeps_its_number() -> None:
    once = Publications().given("a.1", 8000, 0.0, first, closed=False)
    assert once.given("a.1", 8000, 5.0, first, closed=False) is once
    both = once.given("b.1", 8000, 0.0, first, closed=True)
    assert [both.by_attempt[key].number for key in ("a.1", "b.1")] == [NUMBERS[0], NUMBERS[1]]


def test_a_number_is_not_given_again_for_ten_minutes() -> None:
    one = Publications().given("a.1", 8000, 0.0, first, closed=False).without({"a.1"}, 100.0)
    assert one.given("b.1", 8000, 100.0 + REST - 1, first, closed=False).by_attempt["b.1"].number == NUMBERS[1]
    assert one.given("b.1", 8000, 100.0 + REST, first, closed=False).by_attempt["b.1"].number == NUMBERS[0]
    # A clock that was set back does not make it rest for years.
    early = one.given("b.1", 8000, -1e6, first, closed=False)
    assert early.resting[NUMBERS[0]] == -1e6 + REST


def test_no_number_is_left_when_all_are_in_use_or_rest() -> None:
    publications = Publications(resting=dict.fromkeys(NUMBERS, 50.0))
    with pytest.raises(NetworkError):
        publications.given("a.1", 8000, 0.0, first, closed=False)
    assert publications.given("a.1", 8000, 50.0, first, closed=False).by_attempt


def test_leased_ports_have_numbers_of_their_own_and_leave_some_for_replicas() -> None:
    one = Publications().with_leased("a.1", 8888, 0.0, first)
    assert one.with_leased("a.1", 8888, 1.0, first) is one
    both = one.with_leased("a.1", 8889, 0.0, first)
    assert both.leased == {("a.1", 8888): LEASED_NUMBERS[0], ("a.1", 8889): LEASED_NUMBERS[1]}
    rested = both.without_leased([("a.1", 8888)], 0.0)
    assert rested.with_leased("b.1", 1, 0.0, first).leased["b.1", 1] == LEASED_NUMBERS[2]
    # With its attempt goes all of it.
    assert set(both.without({"a.1"}, 0.0).resting) == {LEASED_NUMBERS[0], LEASED_NUMBERS[1]}
    full = Publications(leased={(f"{number}.1", 1): number for number in LEASED_NUMBERS})
    with pytest.raises(PortsExhaustedError):
        full.with_leased("b.1", 1, 0.0, first)
    assert full.given("r.1", 8000, 0.0, first, closed=False).by_attempt["r.1"].number == NUMBERS[0]
    many = Publications(leased={("a.1", port): LEASED_NUMBERS[port] for port in range(MAX_LEASED)})
    with pytest.raises(PortsExhaustedError):
        many.with_leased("a.1", 9000, 0.0, first)


def test_what_is_written_is_read_and_anything_else_refused() -> None:
    publications = Publications().given("a.1", 8000, 0.0, first, closed=True).given("b.2", 1, 0.0, first, closed=False)
    publications = publications.without({"b.2"}, 0.0)
    publications = publications.with_leased("c.1", 8888, 0.0, first)
    assert from_values(to_values(publications)) == publications
    # As a version without leased ports wrote it.
    assert from_values({"attempts": {}, "resting": {}}) == Publications()
    # Numbers that a version gave which had those of Kubernetes' NodePorts.
    former = {"attempts": {"a.1": [30_000, 8000, False]}, "resting": {"32767": 5.0}, "leased": [["b.1", 1, 31_384]]}
    assert to_values(from_values(former)) == former
    refused: list[dict[str, object]] = [
        {},
        {"attempts": [], "resting": {}},
        {"attempts": {"a.1": [22, 8000, False]}, "resting": {}},
        {"attempts": {"a.1": [61000, 0, False]}, "resting": {}},
        {"attempts": {"../x": [61000, 1, False]}, "resting": {}},
        {"attempts": {"a.1": [61000, 1, False], "b.1": [61000, 1, False]}, "resting": {}},
        {"attempts": {}, "resting": {"x": 1}},
        {"attempts": {}, "resting": {}, "leased": [["a.1", 0, 61000]]},
        {"attempts": {}, "resting": {}, "leased": [["a.1", 1, 22]]},
        {"attempts": {"a.1": [61000, 1, False]}, "resting": {}, "leased": [["a.1", 1, 61000]]},
    ]
    for wrong in refused:
        with pytest.raises(ValueError, match=r"published port|attempt|invalid literal"):
            from_values(wrong)


def test_numbers_are_none_that_others_on_a_node_are_given() -> None:
    node_ports, clients = range(30_000, 32_768), range(32_768, 61_000)
    for number in (*NUMBERS, *LEASED_NUMBERS):
        assert number in PORTS
        assert number not in node_ports
        assert number not in clients
    assert set(LEASED_NUMBERS) < set(NUMBERS)
