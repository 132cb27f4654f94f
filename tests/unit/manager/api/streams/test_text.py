"""Output and values of code as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.agent_rpc.output import Piece
from retinue.manager.api.streams.code import as_text
from retinue.manager.api.streams.logs import TextCutter
from retinue.rpc.core.output_stream import Stream
from retinue.types.v1 import code_pb2


def cut(cutter: TextCutter, epoch: int, offset: int, data: bytes) -> list[tuple[int, int, str, int]]:
    return [
        (piece.attempt, piece.offset, piece.text, piece.end_offset) for piece in cutter.cut(epoch, Piece(offset, data))
    ]


def test_a_character_waits_until_it_is_whole() -> None:
    cutter = TextCutter("main1")
    euro = "€".encode()
    assert cut(cutter, 1, 5, b"a" + euro[:1]) == [(1, 5, "a", 6)]
    assert cut(cutter, 1, 7, euro[1:2]) == []
    assert cut(cutter, 1, 8, euro[2:] + b"b") == [(1, 6, "€b", 10)]
    assert cutter.end() == []


def test_what_waits_is_shown_at_a_gap_at_the_next_try_and_at_the_end() -> None:
    cutter = TextCutter("main1")
    assert cut(cutter, 1, 0, b"\xe2") == []
    assert cut(cutter, 1, 100, b"a\xe2") == [(1, 0, "\ufffd", 1), (1, 100, "a", 101)]
    assert cut(cutter, 2, 0, b"b\xe2") == [(1, 101, "\ufffd", 102), (2, 0, "b", 1)]
    assert [(piece.attempt, piece.offset, piece.text, piece.end_offset) for piece in cutter.end()] == [
        (2, 1, "\ufffd", 2)
    ]


def test_text_of_another_stream_finishes_what_waits() -> None:
    cutter = TextCutter("main1")
    pieces = [Piece(0, b"a\xe2", Stream.STDOUT), Piece(2, b"b", Stream.STDERR), Piece(3, b"c", Stream.STDERR)]
    texts = [(part.text, part.stream) for piece in pieces for part in cutter.cut(1, piece)]
    assert texts == [("a", 1), ("\ufffd", 1), ("b", 2), ("c", 2)]


@given(st.lists(st.binary(max_size=7)))
def test_pieces_are_the_whole_output_wherever_it_was_cut(pieces: list[bytes]) -> None:
    cutter, offset, seen = TextCutter("main1"), 0, []
    for piece in pieces:
        seen += cutter.cut(1, Piece(offset, piece))
        offset += len(piece)
    seen += cutter.end()
    assert "".join(response.text for response in seen) == b"".join(pieces).decode(errors="replace")
    ends = [0, *(response.end_offset for response in seen)]
    assert [response.offset for response in seen] == ends[:-1]
    assert ends[-1] == offset


def test_media_that_are_text() -> None:
    png = b"\x89PNG\r\n"
    forms = [code_pb2.CodeMediaForm(mime_type="text/plain", data=b"42"), code_pb2.CodeMediaForm(data=png)]
    events = code_pb2.CodeEvents(
        events=[code_pb2.CodeEvent(stdout="x"), code_pb2.CodeEvent(media=code_pb2.CodeMedia(forms=forms))]
    )
    as_text(events)
    assert [(form.data, form.text) for form in events.events[1].media.forms] == [(b"", "42"), (png, "")]
    assert events.events[0].stdout == "x"
