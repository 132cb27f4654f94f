"""What goes to the helper in a kernel, byte by byte."""

from __future__ import annotations

import pytest

from retinue.agent.kernel.core import frames
from retinue.agent.kernel.core.frames import Start


def test_start_is_strings() -> None:
    start = Start(("sh", "-c", ""), {"A": "1=2"}, "/tmp", (24, 80))  # noqa: S108
    texts = [b"1", b"24", b"80", b"/tmp", b"3", b"sh", b"-c", b"", b"A=1=2", b""]
    assert frames.start_frame(start) == b"S\0\0\0" + bytes([len(b"\0".join(texts))]) + b"\0".join(texts)
    texts = [b"0", b"0", b"0", b"", b"1", b"true", b""]
    assert frames.start_frame(Start(("true",)))[5:] == b"\0".join(texts)


@pytest.mark.parametrize("start", [Start(("a\0b",)), Start(("a",), {"A": "\0"}), Start(("a",), {}, "\0")])
def test_start_without_nul(start: Start) -> None:
    with pytest.raises(ValueError, match="NUL"):
        frames.start_frame(start)


def test_other_frames() -> None:
    assert frames.input_frame(b"ab") == b"I\0\0\0\x02ab"
    assert frames.end_frame() == b"E\0\0\0\0"
    assert frames.resize_frame(24, 300) == b"R\0\0\0\x04\0\x18\x01\x2c"
    assert frames.signal_frame(2) == b"K\0\0\0\x01\x02"
