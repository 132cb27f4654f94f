"""Pieces grow for a reader that reads, and what all of them may hold is bounded."""

from __future__ import annotations

from contextlib import ExitStack

from retinue.agent.api.pieces import FULL_IN_A_ROW, LARGEST, SHARED, SMALLEST, PieceSize, SharedRoom

# What lies between the agent and a reader that does not read: a window of HTTP/2 on either hop.
BETWEEN = 2 * 32_768


def test_a_reader_that_does_not_read_gets_small_pieces_only() -> None:
    size, taken = PieceSize(), 0
    while taken <= BETWEEN:
        taken += size.next(LARGEST)
        size.taken(size.next(LARGEST))
        assert size.next(LARGEST) == SMALLEST


def test_full_pieces_that_are_taken_lead_to_larger_ones() -> None:
    size = PieceSize()
    for _ in range(10 * FULL_IN_A_ROW):
        size.taken(size.next(LARGEST))
    assert size.next(LARGEST) == LARGEST
    chatting = PieceSize()
    for _ in range(10 * FULL_IN_A_ROW):
        chatting.taken(SMALLEST - 1)
    assert chatting.next(LARGEST) == SMALLEST


def test_no_piece_is_larger_than_the_manager_takes() -> None:
    size = PieceSize(2 * SMALLEST)
    for _ in range(10 * FULL_IN_A_ROW):
        assert size.next(LARGEST) <= 2 * SMALLEST
        size.taken(size.next(LARGEST))
    assert size.next(LARGEST) == 2 * SMALLEST


def test_connections_that_are_left_unread_share_what_there_is() -> None:
    room = SharedRoom()
    assert room.limit() == LARGEST
    held = 0
    with ExitStack() as stack:
        for _ in range(10_000):
            # Each was read for long, and then no more.
            count = room.limit()
            held += count - SMALLEST
            stack.enter_context(room.hold(count))
        assert held <= SHARED
        assert room.limit() == SMALLEST
    assert room.limit() == LARGEST
