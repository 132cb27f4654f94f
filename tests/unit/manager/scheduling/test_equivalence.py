"""Equivalence classes of sessions, found in vector steps."""

from __future__ import annotations

import numpy as np
import pytest

from retinue.manager.scheduling import equivalence
from retinue.manager.scheduling.equivalence import Shapes, distinct_rows, find_kinds
from retinue.manager.scheduling.lanes import Lanes
from tests.vectors.scene import Scene


def scene() -> Scene:
    """Nine sessions; which are alike is in `ALIKE`."""
    made = Scene()
    made.add_agent("a", {"cpu": 9, "mem": 9})
    one, two = {"cpu": 1}, {"cpu": 1, "mem": 2}
    made.add_session("s0", "o", [one])
    made.add_session("s1", "p", [one], priority=20, tries=4)
    made.add_session("s2", "o", [one, two])
    made.add_session("s3", "o", [two, one])
    made.add_session("s4", "o", [one, two], single_node=True)
    made.add_session("s5", "o", [one, two])
    made.add_session("s6", "o", [one], architecture="aarch64")
    made.add_session("s7", "o", [one], avoided=["a"])
    made.add_session("s8", "o", [one], single_node=True)
    return made


ALIKE = [{0, 1, 8}, {2, 5}, {3}, {4}, {6}, {7}]


@pytest.mark.parametrize("collide", [False, True])
def test_alike_is_what_asks_for_the_same(collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if collide:
        monkeypatch.setattr(equivalence, "_mix", lambda values: values * np.uint64(0))
    _, _, queue, _ = scene().columns()
    lanes = Lanes(2)
    found, kind_of = find_kinds(queue, np.arange(9), [0, 1], lanes, Shapes(lanes))
    groups: dict[int, set[int]] = {}
    for session, kind in enumerate(kind_of.tolist()):
        groups.setdefault(kind, set()).add(session)
    assert sorted(groups.values(), key=min) == ALIKE
    assert len(found) == len(ALIKE)
    gang, mirrored = found[kind_of[2]], found[kind_of[3]]
    assert gang.total == (2, 2)
    assert [number for _, number in gang.groups] == [1, 1]
    assert gang.kernels == tuple(reversed(mirrored.kernels)), "shapes are shared"
    assert gang.whole is mirrored.whole
    assert found[kind_of[0]].whole is found[kind_of[0]].kernels[0]


def test_only_the_rows_asked_for() -> None:
    _, _, queue, _ = scene().columns()
    lanes = Lanes(2)
    found, kind_of = find_kinds(queue, np.array([3, 5]), [0, 1], lanes, Shapes(lanes))
    assert len(found) == len(set(kind_of.tolist())) == 2
    assert find_kinds(queue, np.zeros(0, np.int64), [0, 1], lanes, Shapes(lanes))[0] == []


def test_distinct_rows_survives_a_bad_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.array([[1, 2], [2, 1], [1, 2], [-1, 0]], np.int64)
    for _ in range(2):
        first, inverse = distinct_rows(matrix)
        assert len(first) == 3
        assert (matrix[first[inverse]] == matrix).all()
        monkeypatch.setattr(equivalence, "_mix", lambda values: values * np.uint64(0))
