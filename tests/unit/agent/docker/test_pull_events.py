"""An engine's answer to a pull, with whatever it repeats of a registry's."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.attempts import Layer
from retinue.agent.docker.core.pull_progress import MAX_BYTES, fold
from retinue.agent.docker.engine import MAX_ANSWER, MAX_ERROR, EngineError, EngineUnavailableError
from retinue.agent.docker.images import pull
from tests.unit.agent.docker.fake_engine import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b'14\r\n{"status": "first"}\n\r\n'


async def events(fake: FakeEngine, directory: Path) -> list[dict[str, Any]]:
    async with fake.serving(directory) as engine:
        return [event async for event in pull(engine, "registry.test/x", "1", {})]


@pytest.mark.parametrize(
    "line", [b"1", b"null", b'"error"', b"[]", b'["error"]', b"[" * 100_000, b"\0\xff", b"", b'{"error"']
)
async def test_what_is_no_event_is_left_out(tmp_path: Path, line: bytes) -> None:
    fake = FakeEngine(OK + line + b'\n{"status": "done"}\n')
    assert await events(fake, tmp_path) == [{"status": "done"}]
    assert fake.asked == ["POST /images/create?fromImage=registry.test/x&tag=1"]


@pytest.mark.parametrize("status", ["200 OK", "500 Error"])
async def test_errors_are_bounded(tmp_path: Path, status: str) -> None:
    text = "\x1b[31m" + "x" * (1 << 20)
    content = json.dumps({"error": text, "message": text}).encode()
    with pytest.raises(EngineError) as refused:
        await events(FakeEngine(OK.replace(b"200 OK", status.encode()) + content + b"\n"), tmp_path)
    assert str(refused.value) == text[:MAX_ERROR]


@pytest.mark.parametrize("status", ["200 OK", "500 Error"])
async def test_an_answer_without_an_end_is_not_kept(tmp_path: Path, status: str) -> None:
    content = b"x" * (MAX_ANSWER + (1 << 20))
    with pytest.raises(EngineError) as refused:
        await events(FakeEngine(OK.replace(b"200 OK", status.encode()) + content, hold=True), tmp_path)
    assert str(refused.value) in {"the Docker engine reports an event without an end", "x" * MAX_ERROR}


async def test_an_answer_that_is_cut_off_is_no_end(tmp_path: Path) -> None:
    """Else an image that is here by the right of others would count as granted by its registry."""
    with pytest.raises(EngineUnavailableError):
        await events(FakeEngine(CHUNKED + CHUNK), tmp_path)
    assert await events(FakeEngine(CHUNKED + CHUNK + b"0\r\n\r\n"), tmp_path) == [{"status": "first"}]


async def test_a_fetch_that_no_attempt_waits_for_is_cancelled(tmp_path: Path) -> None:
    fake = FakeEngine(CHUNKED + CHUNK, hold=True)

    async def follow() -> None:
        async with aclosing(pull(engine, "registry.test/x", "1", {})) as progress:
            async for _ in progress:
                begun.set()

    async with fake.serving(tmp_path) as engine:
        begun = asyncio.Event()
        following = asyncio.create_task(follow())
        await begun.wait()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert await fake.got.get() == b""


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
