"""What programs print reaches a terminal as text and colours, and nothing else that it obeys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.client.command.show.terminal_text import TerminalText

RED, PLAIN = "\x1b[1;31m", "\x1b[0m"


def shown(*portions: bytes) -> str:
    text = TerminalText()
    return "".join([*map(text.take, portions), text.rest()])


@pytest.mark.attack("escape-sequences")
@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        (b"plain\ttext\r\n", "plain\ttext\r\n"),
        ("grüße 漢字".encode(), "grüße 漢字"),
        (f"{RED}red{PLAIN}".encode(), f"{RED}red{PLAIN}{PLAIN}"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        (b"\x1b]52;c;aGVsbG8=\x1b\\", "\\x1b]52;c;aGVsbG8=\\x1b\\"),
        (b"\x1b[2J\x1b[6n\x1bc", "\\x1b[2J\\x1b[6n\\x1bc"),
        ("\x9b2J\u202e".encode(), "\\x9b2J\\u202e"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\x1b[31", "\\x1b[31"),
        (b"\x1b[" + b"1" * 100, "\\x1b[" + "1" * 100),
    ],
)
def test_only_text_and_colours(printed: bytes, seen: str) -> None:
    assert shown(printed) == seen
    # Wherever the portions end.
    assert shown(*(bytes([byte]) for byte in printed)) == seen


@given(st.lists(st.sampled_from([b"a", b"\x1b", b"[", b"3", b";", b"m", b"J", b"]", b"\x07", b"\n", b"\xc2", b"\x9b"])))
def test_portions_make_no_difference_and_nothing_is_obeyed(portions: list[bytes]) -> None:
    seen = shown(*portions)
    assert seen == shown(b"".join(portions))
    for colour in ("\x1b[3m", "\x1b[m", "\x1b[0m", "\x1b[33m", "\x1b[;m", "\x1b[3;m", "\x1b[;3m"):
        seen = seen.replace(colour, "")
    assert "\x9b" not in seen
    assert "\x07" not in seen
    assert "\x1b]" not in seen
    assert not any(part.startswith("[") and "J" in part.partition("m")[0] for part in seen.split("\x1b")[1:])
