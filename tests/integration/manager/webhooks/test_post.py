"""One request of a webhook reaches permitted addresses only, within bounds,
whatever names stand for and receivers answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from retinue.manager.identity.authority import Authority
from retinue.manager.webhooks import post as module
from retinue.manager.webhooks.post import PostError, post
from retinue.rpc.core.addresses import PUBLIC_ONLY, AddressPolicy
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

FIRST = AddressPolicy((ipaddress.ip_network("127.0.0.1/32"),))
SECOND = AddressPolicy((ipaddress.ip_network("127.0.0.2/32"),))
Answer: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """Counts connections, keeps the heads of requests, and answers each the same."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.port, self.connections = 0, 0
        self.heads: list[str] = []
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await self._answer(writer)
        writer.close()
        self.closed.set()


@contextlib.asynccontextmanager
async def receiving(
    answer: bytes | Answer = b"204 No Content\r\n", *, host: str = "127.0.0.1", port: int = 0, tls: Any = None
) -> AsyncIterator[Receiver]:
    async def written(writer: asyncio.StreamWriter) -> None:
        assert isinstance(answer, bytes)
        writer.write(b"HTTP/1.1 " + answer + b"\r\n")
        await writer.drain()

    made = Receiver(written if isinstance(answer, bytes) else answer)
    server = await asyncio.start_server(made.serve, host, port, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def look_up(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Has names stand for these addresses, one list for each time that one is looked up;
    returns the names that were.
    """
    names, left = list[str](), list(answers)

    def found(host: str, port: int, *_: object) -> list[Any]:
        names.append(host)
        addresses = left.pop(0) if left else ["127.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (item, port)) for item in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return names


@pytest.mark.attack("webhooks-to-inner-addresses")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"])
async def test_an_inner_address_is_not_dialled_however_it_is_written(host: str) -> None:
    async with receiving() as receiver:
        with pytest.raises(PostError, match="address"):
            await post(f"http://{host}:{receiver.port}/", {}, "{}", PUBLIC_ONLY)
        assert receiver.connections == 0


async def test_what_a_name_stands_for_is_looked_up_once_and_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as inner, receiving(host="127.0.0.2", port=inner.port) as outer:
        names = look_up(monkeypatch, ["127.0.0.2"], ["127.0.0.1"])
        assert await post(f"http://hook.test:{inner.port}/", {}, "{}", SECOND) == 204
        assert (names, inner.connections, outer.connections) == (["hook.test"], 0, 1)
        assert f"Host: hook.test:{inner.port}" in outer.heads[0]


@pytest.mark.attack("webhooks-to-inner-addresses")
async def test_of_the_addresses_of_a_name_only_the_permitted_are_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as inner, receiving(host="127.0.0.2", port=inner.port) as outer:
        look_up(monkeypatch, ["127.0.0.1", "127.0.0.2"])
        assert await post(f"http://hook.test:{inner.port}/", {}, "{}", SECOND) == 204
        assert (inner.connections, outer.connections) == (0, 1)


async def test_a_redirect_is_not_followed() -> None:
    async with (
        receiving() as other,
        receiving(f"307 Elsewhere\r\nLocation: http://127.0.0.1:{other.port}/\r\n".encode()) as receiver,
    ):
        assert await post(f"http://127.0.0.1:{receiver.port}/", {}, "{}", FIRST) == 307
        assert other.connections == 0


async def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await post(f"http://127.0.0.1:{receiver.port}/", {}, "{}", FIRST) == 204
        assert (proxy.connections, receiver.connections) == (0, 1)


async def test_the_body_of_an_answer_is_not_read() -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    async with receiving(flood) as receiver:
        assert await post(f"http://127.0.0.1:{receiver.port}/", {}, "{}", FIRST) == 200
        await receiver.closed.wait()


@pytest.mark.parametrize("line", [b"A: b\r\n" * 1000, b"x" * 4096, b"A: " + b"b" * 8000 + b"\r\n"])
async def test_the_head_of_an_answer_is_bounded(line: bytes) -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(line)
            await writer.drain()

    async with receiving(flood) as receiver:
        with pytest.raises(PostError):
            await post(f"http://127.0.0.1:{receiver.port}/", {}, "{}", FIRST)
        await receiver.closed.wait()


async def test_an_answer_that_is_no_http_is_an_error() -> None:
    async def greet(writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test ESMTP\r\n")
        await writer.drain()

    async with receiving(greet) as receiver:
        with pytest.raises(PostError):
            await post(f"http://127.0.0.1:{receiver.port}/", {}, "{}", FIRST)


async def test_an_answer_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.1)
    held = asyncio.Event()

    async def hold(_: asyncio.StreamWriter) -> None:
        await held.wait()

    async with receiving(hold) as receiver:
        with pytest.raises(PostError, match="no answer within"):
            await post(f"http://127.0.0.1:{receiver.port}/", {}, "{}", FIRST)
        held.set()


async def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    pair = Authority.load(tmp_path, lambda: dt.datetime.now(dt.UTC)).issue_server([])
    (tmp_path / "pair.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pair.pem")
    async with receiving(tls=context) as receiver:
        with pytest.raises(PostError, match="certificate"):
            await post(f"https://localhost:{receiver.port}/", {}, "{}", FIRST)
        assert receiver.heads == []


async def test_names_that_are_not_answered_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    held, known, asked = threading.Event(), socket.getaddrinfo, []

    def found(host: str, *arguments: Any) -> Any:
        if host == "silent.test":
            asked.append(host)
            held.wait()
            raise socket.gaierror
        return known(host, *arguments)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(module, "_SECONDS", NEVER)
    async with receiving() as receiver, asyncio.TaskGroup() as tasks:
        # More than the threads that the event loop has for everything else.
        silent = [tasks.create_task(post("http://silent.test/", {}, "{}", FIRST)) for _ in range(40)]
        try:
            await eventually(lambda: len(asked) == len(silent))
            assert await post(f"http://localhost:{receiver.port}/", {}, "{}", FIRST) == 204
            assert await asyncio.to_thread(lambda: 1) == 1
        finally:
            held.set()
            for task in silent:
                task.cancel()
