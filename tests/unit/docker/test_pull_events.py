"""An engine's answer to a pull, with whatever it repeats of a registry's."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.attempts import Layer
from retinue.agent.docker.core.pull_progress import MAX_BYTES, fold
from retinue.agent.docker.engine import EngineError
from retinue.agent.docker.pull import MAX_ERROR, MAX_LINE, Pull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[Pull]:
    """A pull from an engine that gives this answer to one request."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as request:
                while request.readline() != b"\r\n":
                    pass
                try:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    # Not all of it was wanted.
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Pull(f"unix://{path}", "registry.test/x", "1", {})
        finally:
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    "line", [b"1", b"null", b'"error"', b"[]", b'["error"]', b"[" * 100_000, b"\0\xff", b"", b'{"error"']
)
def test_what_is_no_event_is_left_out(tmp_path: Path, line: bytes) -> None:
    with answering(tmp_path / "s", OK + line + b'\n{"status": "done"}\n') as pull:
        assert list(pull.events()) == [{"status": "done"}]


@pytest.mark.parametrize("status", ["200 OK", "500 Error"])
def test_errors_are_bounded(tmp_path: Path, status: str) -> None:
    text = "\x1b[31m" + "x" * (1 << 20)
    content = json.dumps({"error": text, "message": text}).encode()
    with answering(tmp_path / "s", OK.replace(b"200 OK", status.encode()) + content + b"\n") as pull:
        with pytest.raises(EngineError) as refused:
            list(pull.events())
        assert str(refused.value) == text[:MAX_ERROR]


def test_an_event_without_an_end_is_not_kept(tmp_path: Path) -> None:
    with answering(tmp_path / "s", OK + b"x" * (MAX_LINE + (1 << 20))) as pull:
        with pytest.raises(EngineError, match="without an end"):
            list(pull.events())
        pull.abort()


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        (None, (0, 0)),
        (1, (0, 0)),
        ([], (0, 0)),
        ({"current": "1", "total": None}, (0, 0)),
        ({"current": -1, "total": -(2**63)}, (0, 0)),
        ({"current": 2**70, "total": 2**63 - 1}, (MAX_BYTES, MAX_BYTES)),
        ({"current": float("inf"), "total": float("nan")}, (0, 0)),
    ],
)
def test_sizes_are_a_registrys_word(detail: Any, expected: tuple[int, int]) -> None:
    event = {"id": "l" * 1000, "status": "Downloading", "progressDetail": detail}
    assert fold({}, event) == {"l" * 64: Layer("l" * 64, *expected)}
