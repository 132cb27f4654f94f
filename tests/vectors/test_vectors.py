"""Independent cases of fair scheduling and autoscaling, each a test named by its id.

Those in `edges` are our own. `pytest tests/vectors --vectors DIR` runs the files of the same format in another
directory. Vectors that concern other parts of the system, or rules that we differ from on purpose, are named with their
reason in exceptions.json: by kind, by id, or by what their input says. They are no cases here, and the report names
them with the reason. An unknown kind is a case that fails, and so is an expectation that nothing looks at.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.vectors.cases import EDGES, RUNNERS, STORE_RUNNERS, check, check_of_store, read_vectors
from tests.vectors.exceptions import EXCEPTIONS, HERE, Vector, case_exception, exception_of, kind_of
from tests.vectors.records import Record, names_of, overlaid

if TYPE_CHECKING:
    from tests.support.databases import Postgres


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each vector."""
    if "vector" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("vectors", default=None)
    directories = [Path(given)] if given else [HERE, EDGES]
    try:
        vectors = [vector for directory in directories for vector in read_vectors(directory)]
        cases = [vector for vector in vectors if exception_of(vector) is None]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    stored = "postgres" in metafunc.fixturenames
    cases = [vector for vector in cases if (kind_of(vector) in STORE_RUNNERS) == stored]
    metafunc.parametrize("vector", cases, ids=[vector["id"] for vector in cases])


def test_vector(vector: Vector) -> None:
    check(vector)


async def test_vector_of_the_store(vector: Vector, postgres: Postgres) -> None:
    await check_of_store(vector, postgres)


def test_exceptions_name_what_exists_and_nothing_else_is_left_out() -> None:
    vectors = list(read_vectors(HERE))
    kinds = {kind_of(vector) for vector in vectors}
    ids = [vector["id"] for vector in vectors]
    runners = {*RUNNERS, *STORE_RUNNERS}
    assert len(set(ids)) == len(ids) == 158
    assert set(EXCEPTIONS["kinds"]) <= kinds
    assert set(EXCEPTIONS["ids"]) <= set(ids)
    assert not set(EXCEPTIONS["kinds"]) & runners
    assert {rule["kind"] for rule in EXCEPTIONS["conditions"] + EXCEPTIONS["cases"]} <= runners
    assert {kind_of(vector) for vector in vectors if exception_of(vector) is None} <= runners
    expected = {key for vector in vectors if isinstance(vector.get("expected"), dict) for key in vector["expected"]}
    assert set(EXCEPTIONS["expected"]) <= expected
    cases = [(kind_of(vector), case) for vector in vectors for case in vector.get("input", vector).get("cases", ())]
    assert {case_exception(kind, case) for kind, case in cases} >= {rule["reason"] for rule in EXCEPTIONS["cases"]}
    named = [reason for part in ("kinds", "ids", "expected") for reason in EXCEPTIONS[part].values()]
    ruled = [rule["reason"] for rule in EXCEPTIONS["conditions"] + EXCEPTIONS["cases"]]
    assert all(len(reason) > 20 for reason in [*named, *ruled])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there are no vectors in"),
        ("{", "is not JSON"),
        ("[1]", "holds no vectors"),
        ('{"vectors": []}', "holds no vectors"),
    ],
)
def test_a_directory_that_holds_something_else(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "more.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        list(read_vectors(tmp_path))


def test_an_unknown_kind_and_keys_that_nothing_looks_at_fail() -> None:
    with pytest.raises(AssertionError, match="nothing runs vectors of kind 'new'"):
        check({"id": "x", "kind": "new"})
    given = {"scheduler": "fifo", "pending_priorities_in_arrival_order": [1]}
    expected = {"order_by_index": [0]}
    vector = {"id": "x", "category": "priority_order", "input": given, "expected": expected}
    check(vector)
    for wrong, where in (
        ({"colour": 1}, "colour"),
        ({"input": {**given, "colour": 1}}, "input.colour"),
        ({"expected": {**expected, "colour": 1}}, "expected.colour"),
    ):
        with pytest.raises(AssertionError, match=f"nothing looks at {where}"):
            check({**vector, **wrong})


def test_keys_deep_inside_and_in_cases_are_looked_for_too() -> None:
    record = Record({"agents": [{"id": "a", "colour": 1}], "whole": {"a": {"b": 1}}, "never": 1, "note": ""})
    assert [agent["id"] for agent in record["agents"]] == ["a"]
    assert record["whole"] == {"a": {"b": 1}}
    assert sorted(record.unread({"note"})) == ["agents[0].colour", "never"]
    case = Record({"limit": 1, "colour": 2})
    base = Record({"limit": 3, "held": 0})
    over = overlaid(base, case)
    assert (over["limit"], over["held"], sorted(names_of(over))) == (1, 0, ["colour", "held", "limit"])
    assert list(case.unread()) == ["colour"]
    # What every case replaces was of no use.
    assert list(base.unread()) == ["limit"]


@pytest.mark.parametrize("decided_by_count", [False, True])
def test_orders_that_the_number_of_allocations_decides_are_exceptions(decided_by_count: bool) -> None:
    steps = [{"op": "set_total", "res": {"cpus": 10}}]
    steps += [{"op": "add", "client": client} for client in "ab"]
    client = "a" if decided_by_count else "b"
    steps += [{"op": op, "client": client, "res": {"cpus": 1}} for op in ("allocate", "unallocate")]
    steps += [{"op": "expect_order", "order": ["b", "a"] if decided_by_count else ["a", "b"]}]
    assert (exception_of({"kind": "sorter_steps", "steps": steps}) is not None) == decided_by_count
