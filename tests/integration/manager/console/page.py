"""What speaks HTTP to a console as the page of a browser does, or as an attacker writes it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.integration.sessions.web import Loopback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

PROTOCOL = "retinue.grpc.v1"
CALL = "application/grpc-web+proto"
ACCOUNTS, SESSIONS = "/rpc/retinue.manager.v1.AccountService", "/rpc/retinue.manager.v1.SessionService"
# Each page is of an address of its own, by which tries to log in are counted.
_addresses = (f"127.0.{high}.{low}" for high, low in itertools.product(range(1, 255), range(1, 255)))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def cookie(self) -> str:
        """The cookie that it gives, as it is sent back."""
        return self.headers["set-cookie"].partition(";")[0]

    def trailers(self) -> dict[str, str]:
        """Those of a call, whose message is left out."""
        body = self.body
        while body:
            kind, size = struct.unpack(">BI", body[:5])
            content, body = body[5 : 5 + size], body[5 + size :]
            if kind == 0x80:
                return dict(line.split(":", 1) for line in content.decode().split("\r\n") if line)
        raise AssertionError("no trailers")


@dataclass(slots=True)
class Page:
    """A page of a browser at one address; `trusting` is a certificate in PEM, for TLS."""

    origin: str
    trusting: bytes | None = None
    cookie: str = ""
    address: str = field(default_factory=lambda: next(_addresses))

    @property
    def _context(self) -> ssl.SSLContext | None:
        return None if self.trusting is None else ssl.create_default_context(cadata=self.trusting.decode())

    @property
    def own(self) -> dict[str, str]:
        """The headers that a browser adds to what the page asks for."""
        return {"Origin": self.origin, "Sec-Fetch-Site": "same-origin"} | (
            {"Cookie": self.cookie} if self.cookie else {}
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.origin.partition("://")[2].partition(":")
        options: dict[str, Any] = {} if self.trusting is None else {"ssl": self._context, "server_hostname": host}
        return await asyncio.open_connection("127.0.0.1", int(port), local_addr=(self.address, 0), **options)

    async def send(
        self, method: str, path: str, headers: dict[str, str] | Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> Answer:
        """Sends a request as it is, and reads the answer up to the end of the connection."""
        fields = list(headers.items()) if isinstance(headers, dict) else list(headers)
        names = {name.lower() for name, _ in fields}
        fields.append(("Host", self.origin.partition("://")[2]))
        if body and "content-length" not in names:
            fields.append(("Content-Length", str(len(body))))
        if "connection" not in names:
            fields.append(("Connection", "close"))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        reader, writer = await self.connect()
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            # A server may answer, and close, before it has read everything.
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            return await _answer(reader)
        finally:
            writer.close()

    async def post(self, path: str, body: bytes, **headers: str) -> Answer:
        """Posts as the page does."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.send("POST", path, {**self.own, "Content-Type": CALL, **given}, body)

    async def call(self, path: str, message: bytes = b"") -> Answer:
        """A unary call."""
        return await self.post(path, struct.pack(">BI", 0, len(message)) + message)

    async def log_in(self, **given: str) -> Answer:
        """Logs in by `token` or `ticket`, and keeps the cookie if it is let in."""
        answer = await self.post("/login", json.dumps(given).encode(), Content_Type="application/json")
        if answer.status == 204:
            self.cookie = answer.cookie
        return answer

    async def status(self) -> str:
        """The status in gRPC of a call that any user may make."""
        return (await self.call(f"{ACCOUNTS}/GetCaller")).trailers()["grpc-status"]

    @contextlib.asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A websocket, which gives up at no time by itself."""
        headers = {"Origin": self.origin} | ({"Cookie": self.cookie} if self.cookie else {})
        context = True if self._context is None else self._context
        connector = aiohttp.TCPConnector(resolver=Loopback(), ssl=context, local_addr=(self.address, 0))
        values: dict[str, Any] = {"headers": headers, "protocols": (PROTOCOL,), "max_msg_size": 0, **options}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.ws_connect(self.origin + path, **values) as made,
        ):
            yield made


def abort(stream: aiohttp.ClientWebSocketResponse) -> None:
    """Drops the connection of a stream: a close would wait for room behind what was not read."""
    connection = stream._conn  # noqa: SLF001  # there is no other way to it
    assert connection is not None
    assert connection.transport is not None
    connection.transport.abort()


async def stalled(page: Page, count: Callable[[], int]) -> int:
    """Waits until what is counted grows no more, and returns how far it came.

    It is the same before and after calls that take the same way: a machine that is merely slow is slow to both.
    """
    while True:
        before = count()
        for _ in range(10):
            assert await page.status() == "0"
        if 0 < before == count():
            return before


async def _answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    if (length := headers.get("content-length")) is not None:
        body = await reader.readexactly(int(length))
    elif headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
    else:
        body = b""
    return Answer(int(head[0].split()[1]), headers, body)


async def ended(stream: aiohttp.ClientWebSocketResponse) -> Any:
    """Returns the end of a stream, past its messages; fails when it is cut without one."""
    while True:
        message = await stream.receive()
        if message.type is aiohttp.WSMsgType.TEXT:
            end = json.loads(message.data)
            assert set(end) == {"code", "message", "details"}
            assert (await stream.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            return end
        assert message.type is aiohttp.WSMsgType.BINARY, message
