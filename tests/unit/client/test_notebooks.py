"""What prompts and notebooks show of values."""

from __future__ import annotations

from dataclasses import replace

from retinue.client import Completed, LogChunk, Settings
from retinue.client import Session as BlockingSession
from retinue.client.kernel.code import CodeResult
from retinue.client.notebooks import as_html
from retinue.client.sessions import Session
from retinue.manager.v1 import session_pb2 as pb

VIEW = pb.Session(
    id="0f8fad5b-d9cb-469f-a165-70867728950e",
    spec=pb.SessionSpec(name="lab"),
    state=pb.SESSION_STATE_TERMINATED,
    result=pb.SESSION_RESULT_FAILED,
    exit_code=3,
    message="<b>ended</b>",
)
CODE = CodeResult("r", "OK", 0, "<i>1</i>\n", "", value="42")


def test_texts_are_one_short_line() -> None:
    for value, text in (
        (Completed(VIEW, b"x" * 1000), "<Completed lab FAILED, exit code 3, 1000 bytes of output>"),
        (CODE, "<CodeResult OK 42>"),
        (LogChunk("main1", 7, b"y" * 99, stream="stdout"), "<LogChunk main1 stdout at 7, 99 bytes>"),
        (Settings("localhost:7440", "secret", "ca.pem"), "<Settings localhost:7440, with a token>"),
    ):
        assert repr(value) == text
    for long in ("9" * 500, "a\nb" * 500, "\x1b[31m" * 90):
        shown = repr(replace(CODE, value=long))
        assert len(shown) < 120
        assert shown.isprintable()


def test_notebooks_show_what_programs_print_as_text() -> None:
    for value in (Completed(VIEW, b"<script>alert(1)</script>"), CODE, as_session(), BlockingSession(as_session())):
        shown = value._repr_html_()
        for tag in ("<script", "<i>", "<b>ended"):
            assert tag not in shown
    shown = Completed(VIEW, b"<script>")._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "&lt;b&gt;ended" in shown
    assert len(as_html("t", {}, "x" * 1_000_000)) < 30_000


def as_session() -> Session:
    return Session(None, VIEW, 1)  # type: ignore[arg-type]  # it calls nothing
