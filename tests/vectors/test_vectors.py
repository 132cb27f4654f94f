"""Independent cases of fair scheduling, each a test named by its id.

`pytest tests/vectors --vectors DIR` runs the files of the same format in another directory. Vectors that concern other parts of the
system, or rules that we differ from on purpose, are named with their reason in exceptions.json and are no cases here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import placement_vectors, share_vectors

HERE = Path(__file__).parent
EXCEPTIONS: dict[str, dict[str, str]] = json.loads((HERE / "exceptions.json").read_text())
RUNNERS = {**share_vectors.RUNNERS, **placement_vectors.RUNNERS}
Vector = dict[str, Any]


def kind_of(vector: Vector) -> str:
    """What a vector is about."""
    return str(vector.get("kind") or vector["category"])


def read_vectors(directory: Path) -> Iterator[Vector]:
    """All vectors of the files in a directory."""
    for path in sorted(directory.glob("*.json")):
        content = json.loads(path.read_text())
        if "vectors" in content:
            yield from content["vectors"]


def is_excepted(vector: Vector) -> bool:
    """Whether exceptions.json names a vector."""
    return kind_of(vector) in EXCEPTIONS["kinds"] or vector["id"] in EXCEPTIONS["ids"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each vector."""
    if "vector" in metafunc.fixturenames:
        directory = Path(metafunc.config.getoption("vectors", default=None) or HERE)
        cases = [vector for vector in read_vectors(directory) if not is_excepted(vector)]
        metafunc.parametrize("vector", cases, ids=[vector["id"] for vector in cases])


def test_vector(vector: Vector) -> None:
    assert kind_of(vector) in RUNNERS, f"nothing runs vectors of kind {kind_of(vector)}"
    RUNNERS[kind_of(vector)](vector)


def test_exceptions_name_what_exists_and_nothing_else_is_left_out() -> None:
    vectors = list(read_vectors(HERE))
    kinds = {kind_of(vector) for vector in vectors}
    ids = [vector["id"] for vector in vectors]
    assert len(set(ids)) == len(ids) == 128
    assert set(EXCEPTIONS["kinds"]) <= kinds
    assert set(EXCEPTIONS["ids"]) <= set(ids)
    assert not set(EXCEPTIONS["kinds"]) & set(RUNNERS)
    assert {kind_of(vector) for vector in vectors if not is_excepted(vector)} <= set(RUNNERS)
    assert all(len(reason) > 20 for reasons in EXCEPTIONS.values() for reason in reasons.values())
    assert not [
        vector["id"]
        for vector in vectors
        if vector["id"] in EXCEPTIONS["ids"] and kind_of(vector) in EXCEPTIONS["kinds"]
    ]
