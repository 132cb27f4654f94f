"""An engine that answers anything, or nothing: each call ends in time with one of two errors,
and leaves no connection.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from retinue.agent.docker import engine as docker_engine
from retinue.agent.docker.attached import ExecChannel
from retinue.agent.docker.core.container_state import FileFacts
from retinue.agent.docker.engine import MAX_ERROR, Engine, EngineError, EngineUnavailableError
from tests.support.eventually import eventually
from tests.unit.agent.docker.fake_engine import FakeEngine, reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

CALLS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "create": lambda engine: engine.create("c", {}),
    "create_exec": lambda engine: engine.create_exec("c", ["true"], "1:1"),
    "executing": lambda engine: engine.executing("e"),
    "file": lambda engine: engine.file("c", "/etc/passwd"),
    "image": lambda engine: engine.image("a/b:1"),
    "inspect": lambda engine: engine.inspect("c"),
    "attempts": lambda engine: engine.attempts("a"),
    "written": lambda engine: engine.written("a", sizes=True),
}
"""Calls that read an answer."""
OTHERS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "check": lambda engine: engine.check(),
    "kill": lambda engine: engine.kill("c"),
    "remove": lambda engine: engine.remove("c"),
    "start": lambda engine: engine.start("c"),
    "start_exec": lambda engine: engine.start_exec("e"),
    "wait": lambda engine: engine.wait("c"),
}
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"1", b"null", b"[" * 100_000, b"[1]", b'{"Id": 1, "State": 2, "Config": []}', b"\0\xff"],
)
async def test_an_answer_that_makes_no_sense(tmp_path: Path, name: str, content: bytes) -> None:
    async with FakeEngine(reply(content)).serving(tmp_path) as engine:
        with contextlib.suppress(EngineError):
            await CALLS[name](engine)


@pytest.mark.parametrize("name", CALLS | OTHERS)
async def test_an_engine_that_is_gone(tmp_path: Path, name: str) -> None:
    engine = Engine(f"unix://{tmp_path}/none")
    with pytest.raises(EngineUnavailableError, match="does not answer"):
        await (CALLS | OTHERS)[name](engine)
    await engine.close()


@pytest.mark.parametrize("name", CALLS | OTHERS)
async def test_an_engine_that_is_silent(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends in time, and its connection with it: the engine cancels what it does for a closed connection."""
    fake, bounds, seconds = FakeEngine(b"", hold=True), list[asyncio.Timeout](), list[float]()

    def timeout(delay: float) -> asyncio.Timeout:
        seconds.append(delay)
        bounds.append(asyncio.timeout(None))
        return bounds[-1]

    # Time is up when the engine has been asked, and not before.
    monkeypatch.setattr(docker_engine, "asyncio", SimpleNamespace(**{**vars(asyncio), "timeout": timeout}))
    async with fake.serving(tmp_path) as engine:
        call = asyncio.ensure_future((CALLS | OTHERS)[name](engine))
        await eventually(lambda: fake.asked)
        bounds[-1].reschedule(0.0)
        with pytest.raises(EngineUnavailableError, match="does not answer within"):
            await call
        assert await fake.got.get() == b""
    assert 0 < seconds[-1] < math.inf


@pytest.mark.parametrize("name", CALLS | OTHERS)
async def test_a_call_that_is_cancelled(tmp_path: Path, name: str) -> None:
    fake = FakeEngine(b"HTTP/1.1 200 OK\r\n", hold=True)
    async with fake.serving(tmp_path) as engine:
        call = asyncio.ensure_future((CALLS | OTHERS)[name](engine))
        await eventually(lambda: fake.asked)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await fake.got.get() == b""


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_errors_are_bounded(tmp_path: Path, kind: str) -> None:
    text = "\x1b[31m" + "x" * (1 << 20)
    content = json.dumps({"message": text}).encode() if kind == "application/json" else text.encode()
    async with FakeEngine(reply(content, "500 Error", kind)).serving(tmp_path) as engine:
        for name in CALLS | OTHERS:
            with pytest.raises(EngineError) as refused:
                await (CALLS | OTHERS)[name](engine)
            assert len(str(refused.value)) <= MAX_ERROR


@pytest.mark.parametrize(("status", "expected"), [("404 Not Found", None), ("409 Conflict", EngineError)])
async def test_what_is_not_there(tmp_path: Path, status: str, expected: type[EngineError] | None) -> None:
    async with FakeEngine(reply(b'{"message": "no"}', status)).serving(tmp_path) as engine:
        await engine.kill("c")
        assert await engine.create_exec("c", ["true"], "1:1") is None
        assert await engine.start_exec("e") is None
        if expected is None:
            await engine.remove("c")
            assert await engine.inspect("c") is None
            assert await engine.file("c", "/x") is None
        else:
            assert await engine.create("c", {}) is False
            with pytest.raises(expected):
                await engine.remove("c")


@pytest.mark.parametrize(
    "name", ["../containers/c", "a/../../containers/c", "%2e%2e/containers/c", "a?b=1", "a#b", "a b", "", "/a", "a//b"]
)
async def test_a_name_that_is_none_is_not_asked_for(tmp_path: Path, name: str) -> None:
    """The library puts names into paths as they are; where they led would be read as an image."""
    fake = FakeEngine(reply(b'{"Id": "sha256:1"}'))
    async with fake.serving(tmp_path) as engine:
        assert await engine.image(name) is None
        assert not fake.asked


@pytest.mark.parametrize(
    "name", ["a", "a:1", "b.test:5000/a_b/c-d:v1.0", "[::1]:5000/a:1", "a@sha256:" + "0" * 64, "sha256:" + "0" * 64]
)
async def test_names_of_images(tmp_path: Path, name: str) -> None:
    fake = FakeEngine(reply(b'{"Id": "sha256:1"}'))
    async with fake.serving(tmp_path) as engine:
        assert await engine.image(name) == {"Id": "sha256:1"}
    assert list(map(unquote, fake.asked)) == [f"GET /v1.41/images/{name}/json"]


async def test_where_a_link_of_an_image_leads_may_be_long(tmp_path: Path) -> None:

    facts = {"mode": 1 << 27, "size": 5, "linkTarget": "<" * 4096}
    header = base64.b64encode(json.dumps(facts).replace("<", "\\u003c").encode()).decode()
    fake = FakeEngine(
        f"HTTP/1.1 200 OK\r\nX-Docker-Container-Path-Stat: {header}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    async with fake.serving(tmp_path) as engine:
        assert await engine.file("c", "/etc/passwd") == FileFacts(plain=False, size=5)


def frame(kind: int, data: bytes) -> bytes:
    return bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


async def attached(engine: Engine) -> ExecChannel:
    stream = await engine.start_exec("e")
    assert stream is not None
    return ExecChannel(stream)


async def test_output_of_commands_comes_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = frame(1, b"abc") + frame(2, b"no") + frame(1, b"") + frame(1, b"def")
    monkeypatch.setattr("aiodocker.execs.Exec.inspect", _without_terminal)
    async with FakeEngine(UPGRADED + content).serving(tmp_path) as engine:
        channel = await attached(engine)
        assert [await channel.readexactly(count) for count in (1, 4, 0, 1)] == [b"a", b"bcde", b"", b"f"]
        with pytest.raises(asyncio.IncompleteReadError):
            await channel.readexactly(1)
        # The engine has closed the connection: what is sent is lost, and known to be.
        with pytest.raises(OSError, match="closed"):
            await channel.send(b"x")
        await channel.close()


async def test_input_of_commands_goes_as_it_is_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodocker.execs.Exec.inspect", _without_terminal)
    fake = FakeEngine(UPGRADED, hold=True)
    async with fake.serving(tmp_path) as engine:
        channel = await attached(engine)
        await channel.send(b"a\0b\r\n\r\n")
        assert await fake.got.get() == b"a\0b\r\n\r\n"
        await channel.close()
        assert await fake.got.get() == b""


async def _without_terminal(self: Any) -> dict[str, Any]:
    self._tty = False
    return {}
