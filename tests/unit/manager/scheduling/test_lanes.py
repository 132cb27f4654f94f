"""Amounts packed in one integer."""

from __future__ import annotations

import itertools

import numpy as np

from retinue.manager.scheduling.lanes import LIMIT, Lanes

EDGES = (0, 1, 2, LIMIT - 1, LIMIT)


def test_fits_lane_by_lane() -> None:
    lanes = Lanes(3)
    for request in itertools.product(EDGES, repeat=3):
        for free in itertools.product((0, 1, LIMIT - 1), repeat=3):
            expected = all(wanted <= left for wanted, left in zip(request, free, strict=True))
            assert lanes.fits(lanes.pack(request), lanes.pack(free)) == expected


def test_zeros_are_reported() -> None:
    lanes = Lanes(3)
    for amounts in itertools.product(EDGES, repeat=3):
        zeros = lanes.zeros(lanes.pack(amounts))
        assert zeros.bit_count() == amounts.count(0)
        assert zeros & ~lanes.guards == 0


def test_packs_and_unpacks() -> None:
    lanes = Lanes(4)
    rows = np.array([[0, 1, 2, 3], [LIMIT - 1, 0, 0, 7]], np.int64)
    packed = lanes.pack_rows(rows)
    assert packed == [lanes.pack(row) for row in rows.tolist()]
    assert (lanes.unpack_rows(packed) == rows).all()
    assert sorted([lanes.pack([1, 0, 0, 0]), lanes.pack([0, 9, 9, 9])]) == [
        lanes.pack([0, 9, 9, 9]),
        lanes.pack([1, 0, 0, 0]),
    ]


def test_guards_of_chosen_lanes() -> None:
    lanes = Lanes(3)
    for chosen in itertools.product((False, True), repeat=3):
        # The guards of the lanes that are 0 are asked for in another way.
        assert lanes.guards_of(chosen) == lanes.zeros(lanes.pack([0 if yes else 1 for yes in chosen]))


def test_unpacks_one() -> None:
    lanes = Lanes(3)
    for amounts in itertools.product(EDGES, repeat=3):
        assert lanes.unpack(lanes.pack(amounts)) == list(amounts)


def test_what_is_too_large_is_cut_off() -> None:
    lanes = Lanes(2)
    assert lanes.pack([5, 1 << 80]) == lanes.pack([5, LIMIT])
    assert not lanes.fits(lanes.pack([0, 1 << 80]), lanes.pack([0, LIMIT - 1]))


def test_no_lanes() -> None:
    lanes = Lanes(0)
    assert lanes.pack_rows(np.zeros((3, 0), np.int64)) == [0, 0, 0]
    assert lanes.fits(0, 0)
