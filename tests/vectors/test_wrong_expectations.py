"""A wrong expectation fails: each value that a vector expects is made another, one at a time."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.vectors.cases import EDGES, STORE_RUNNERS, check, check_of_store, read_vectors
from tests.vectors.exceptions import EXCEPTIONS, HERE, Vector, exception_of, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.databases import Postgres

Path = tuple[str | int, ...]
# What decides nothing, by the id of the vector and the beginning of the path, and why.
UNDECIDED: dict[tuple[str, Path], str] = {
    ("multi-05", ("units", 2)): "a case that is an exception",
    ("multi-05", ("units", 3)): "a case that is an exception",
    ("edge-ap-tie", ("agent_any_of", 0)): "the other one of two that are right",
    ("edge-dc-zero", ("fair_share", "A")): "any part of nothing is nothing",
    ("edge-dc-zero", ("demand_capped", "A")): "any part of nothing is nothing",
    ("starts-at-01", ("startable", 0)): "a case that is an exception",
    ("ledger-05", ("reserved",)): "what a whole batch leaves that is rolled back; the invariant is compared instead",
}


ERRORS = (AssertionError, LookupError, ValueError, TypeError, StopIteration)
"""How a vector fails: what it expects may be of another kind than what it is compared with."""
SAID = {False: "may be anything", True: "is decided: take it off the list"}


def vectors() -> list[Vector]:
    return [
        vector
        for directory in (HERE, EDGES)
        for vector in read_vectors(directory)
        if exception_of(vector) is None and "expected" in vector
    ]


def values_of(part: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values that are no collections, or empty ones, with their paths."""
    if part and isinstance(part, dict | list):
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from values_of(value, (*path, key))
    elif not {*EXCEPTIONS["comments"], *EXCEPTIONS["expected"]} & set(path):
        yield path, part


def another(value: Any) -> Any:
    """A value of the same type that is not this one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case []:
            return ["nonesuch"]
        case {}:
            return {"nonesuch": 1}
        case str() if value.removeprefix("-").replace(".", "", 1).isdecimal():
            return str(float(value) + 1)
    return "nonesuch"


def wrong(vector: Vector) -> Iterator[tuple[Path, Vector]]:
    """The vector with one value of what it expects replaced, for each of them."""
    for path, value in values_of(vector["expected"]):
        changed = copy.deepcopy(vector)
        part: Any = changed
        whole: Path = ("expected", *path)
        for key in whole[:-1]:
            part = part[key]
        part[whole[-1]] = another(value)
        yield path, changed


def is_undecided(vector: Vector, path: Path) -> bool:
    return any(vector["id"] == name and path[: len(part)] == part for name, part in UNDECIDED)


ALL = vectors()
WITHOUT_STORE = [vector for vector in ALL if kind_of(vector) not in STORE_RUNNERS]
OF_STORE = [vector for vector in ALL if kind_of(vector) in STORE_RUNNERS]


@pytest.mark.parametrize("vector", WITHOUT_STORE, ids=lambda vector: vector["id"])
def test_each_value_that_is_expected_is_compared(vector: Vector) -> None:
    for path, changed in wrong(vector):
        try:
            check(changed)
        except ERRORS:
            decided = True
        else:
            decided = False
        assert decided != is_undecided(vector, path), f"{path} {SAID[decided]}"


@pytest.mark.parametrize("vector", OF_STORE, ids=lambda vector: vector["id"])
async def test_each_value_that_is_expected_of_the_store_is_compared(vector: Vector, postgres: Postgres) -> None:
    for path, changed in wrong(vector):
        try:
            await check_of_store(changed, postgres)
        except ERRORS:
            decided = True
        else:
            decided = False
        assert decided != is_undecided(vector, path), f"{path} {SAID[decided]}"
