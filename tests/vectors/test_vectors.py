"""Independent cases of fair scheduling, each a test named by its id.

`pytest tests/vectors --vectors DIR` runs the files of the same format in another directory. Vectors that concern other parts of the
system, or rules that we differ from on purpose, are named with their reason in exceptions.json: by kind, by id, or by what their input says.
They are no cases here, and the report counts them by reason. A kind that nobody has heard of is a case that fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import device_vectors, placement_vectors, policy_vectors, share_vectors

HERE = Path(__file__).parent
EXCEPTIONS: dict[str, Any] = json.loads((HERE / "exceptions.json").read_text())
RUNNERS = {**device_vectors.RUNNERS, **share_vectors.RUNNERS, **placement_vectors.RUNNERS, **policy_vectors.RUNNERS}
Vector = dict[str, Any]


def kind_of(vector: Vector) -> str:
    """What a vector is about."""
    return str(vector.get("kind") or vector["category"])


def read_vectors(directory: Path) -> Iterator[Vector]:
    """All vectors of the files in a directory. Raises ValueError when there are none, or a file holds something else."""
    paths = [path for path in sorted(directory.glob("*.json")) if path.name != "exceptions.json"]
    if not paths:
        raise ValueError(f"no vectors in {directory}")
    for path in paths:
        content = json.loads(path.read_text())
        vectors = content if isinstance(content, list) else content.get("vectors")
        if not vectors:
            raise ValueError(f"{path} holds no vectors")
        yield from vectors


def exception_of(vector: Vector) -> str | None:
    """Why a vector is no case here: by its kind, by its id, or by what its input says; None when it is one."""
    kind, given = kind_of(vector), vector.get("input", vector)
    reason = EXCEPTIONS["kinds"].get(kind) or EXCEPTIONS["ids"].get(vector["id"])
    for condition in EXCEPTIONS["conditions"]:
        if condition["kind"] == kind and all(given.get(key) == value for key, value in condition["where"].items()):
            reason = condition["reason"]
    return reason


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each vector."""
    if "vector" in metafunc.fixturenames:
        directory = Path(metafunc.config.getoption("vectors", default=None) or HERE)
        cases = [vector for vector in read_vectors(directory) if exception_of(vector) is None]
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
    assert {condition["kind"] for condition in EXCEPTIONS["conditions"]} <= set(RUNNERS)
    assert {kind_of(vector) for vector in vectors if exception_of(vector) is None} <= set(RUNNERS)
    reasons = [*EXCEPTIONS["kinds"].values(), *EXCEPTIONS["ids"].values()]
    assert all(len(reason) > 20 for reason in [*reasons, *(item["reason"] for item in EXCEPTIONS["conditions"])])
