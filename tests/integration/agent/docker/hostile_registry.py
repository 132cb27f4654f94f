"""A registry that answers anything, by the name of the repository that is asked for,
and an inner service that it leads engines to.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from typing import TYPE_CHECKING, Any, Self

from retinue.devtools import nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ADDRESS = "127.0.0.2"
LINK_LOCAL = "169.254.169.254"
"""Where metadata services are; in a namespace of a test, an address of its own loopback."""
BANNER = "banner-of-an-inner-service"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIGURATION = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
MAX_LAYERS = 20_000
PIECE, PIECE_SECONDS = 16_384, 0.02
"""Of an answer without an end: the engine keeps all of a manifest in memory, so it is not sent as fast as can be."""

ENDING = {
    "error-text",
    "error-nested",
    "redirect-loopback",
    "redirect-link-local",
    "redirect-loop",
    "redirect-file",
    "garbage",
    "empty",
    "nested",
    "wrong-digest",
    "other-digest",
    "negative-size",
    "cut-off",
    "realm",
    "realm-relative",
    "no-http",
}
"""Repositories whose fetch fails soon."""
HANGING = {"hang", "drip", "endless", "endless-header", "huge-layer"}
"""Repositories whose fetch does not end by itself."""
SLOW = {"many-layers"}
"""Repositories whose fetch fails once the engine has looked at all of it, which takes long."""


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _manifest(layers: list[tuple[str, int]], configuration: bytes = b"{}") -> bytes:
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIGURATION, "size": len(configuration), "digest": _digest(configuration)},
            "layers": [{"mediaType": LAYER, "size": size, "digest": digest} for digest, size in layers],
        }
    ).encode()


def _many_layers() -> bytes:
    return _manifest([(f"sha256:{number:064x}", 1) for number in range(MAX_LAYERS)])


def _configuration(layers: int) -> bytes:
    """A configuration of so many layers, as engines take it."""
    content: dict[str, Any] = {"architecture": "amd64", "os": "linux", "config": {}}
    content["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{number:064x}" for number in range(layers)]}
    return json.dumps(content).encode()


_ONE_LAYER = _configuration(1)
MANIFESTS: dict[str, Callable[[], bytes]] = {
    "garbage": lambda: b"\0\xff\x1b[31m not a manifest" * 1000,
    "empty": lambda: b"",
    "nested": lambda: b"[" * 200_000,
    "wrong-digest": lambda: _manifest([(_digest(b"layer"), 5)], _ONE_LAYER),
    "other-digest": lambda: _manifest([("sha256:../../../../etc/passwd", 5), ("md5:00", 1)]),
    "many-layers": _many_layers,
    "negative-size": lambda: _manifest([(_digest(b"layer"), -(2**63))], _ONE_LAYER),
    "huge-layer": lambda: _manifest([(_digest(b"layer"), 2**63 - 1)], _ONE_LAYER),
}


class HostileRegistry:
    """Listens in a network namespace, on the loopback and at the address of a metadata service."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._servers: list[asyncio.Server] = []
        self._links: set[asyncio.Task[None]] = set()
        self._is_open = True
        self._inner_port = 0
        self.address = ""
        self.hanging: dict[str, int] = {}
        """Connections that wait for an end, by repository."""
        self.asked: set[str] = set()

    async def __aenter__(self) -> Self:
        self.address = f"{ADDRESS}:{await self._listen(ADDRESS, 0, self._answer)}"
        self._inner_port = await self._listen("127.0.0.1", 0, self._answer_inside)
        await self._listen(LINK_LOCAL, 80, self._answer_inside)
        return self

    async def __aexit__(self, *_: object) -> None:
        # A connection that was accepted before may be told of only afterwards.
        self._is_open = False
        for server in self._servers:
            server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _listen(self, address: str, port: int, answer: Callable[[str, str], AsyncIterator[bytes]]) -> int:
        def listen() -> socket.socket:
            return socket.create_server((address, port))

        listener = await asyncio.to_thread(nodes.run_in, self._namespace, listen)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            if not self._is_open:
                writer.transport.abort()
                return
            self._links.add(task)
            try:
                await self._serve(reader, writer, answer)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                # The engine has gone, or the test has ended.
                pass
            finally:
                self._links.discard(task)
                writer.close()

        self._servers.append(await asyncio.start_server(accept, sock=listener))
        return int(listener.getsockname()[1])

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[str, str], AsyncIterator[bytes]],
    ) -> None:
        """Answers one request: every answer ends with its connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        name = path.split("/")[2] if path.startswith("/v2/") and path != "/v2/" else ""
        gone = asyncio.create_task(reader.read())
        sending = asyncio.create_task(self._send(method, path, writer, answer))
        if name in HANGING:
            self.hanging[name] = self.hanging.get(name, 0) + 1
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            if name in HANGING:
                self.hanging[name] -= 1

    async def _send(
        self,
        method: str,
        path: str,
        writer: asyncio.StreamWriter,
        answer: Callable[[str, str], AsyncIterator[bytes]],
    ) -> None:
        async for piece in answer(method, path):
            writer.write(piece)
            await writer.drain()

    async def _answer_inside(self, method: str, path: str) -> AsyncIterator[bytes]:
        del method, path
        self.asked.add("inner service")
        text = json.dumps({"errors": [{"code": "DENIED", "message": BANNER}], "details": BANNER})
        yield _response(403, text.encode())

    async def _answer(self, method: str, path: str) -> AsyncIterator[bytes]:
        if path == "/v2/":
            yield _response(200, b"{}")
            return
        _, _, name, kind, wanted = path.split("/", 4)
        self.asked.add(name)
        pieces = self._blob(name, wanted) if kind == "blobs" else self._manifest_of(method, name)
        async for piece in pieces:
            yield piece

    async def _blob(self, name: str, wanted: str) -> AsyncIterator[bytes]:
        if wanted == _digest(_ONE_LAYER):
            yield _response(200, _ONE_LAYER)
        elif wanted == _digest(b"{}"):
            yield _response(200, b"{}")
        elif name == "huge-layer":
            yield _head(200, f"Content-Length: {2**62}")
            async for piece in _endless():
                yield piece
        else:
            yield _response(200, b"these are other bytes than were asked for")

    async def _manifest_of(self, method: str, name: str) -> AsyncIterator[bytes]:
        inner = f"127.0.0.1:{self._inner_port}"
        errors = json.dumps({"errors": [{"code": "UNKNOWN", "message": "\x1b[31m\0" + "x" * (1 << 20)}]}).encode()
        redirects = {
            "redirect-loopback": f"http://{inner}/secret",
            "redirect-link-local": f"http://{LINK_LOCAL}/latest/meta-data",
            "redirect-loop": f"http://{self.address}/v2/redirect-loop/manifests/1",
            "redirect-file": "file:///etc/shadow",
        }
        realms = {"realm": f"http://{inner}/token", "realm-relative": "//../\\x1b[31m"}
        if name in redirects:
            yield _head(307, f"Location: {redirects[name]}", "Content-Length: 0")
        elif name in realms:
            yield _head(401, f'WWW-Authenticate: Bearer realm="{realms[name]}",service="x"', "Content-Length: 0")
        elif name == "error-text":
            yield _response(500, errors)
        elif name == "error-nested":
            yield _response(500, b'{"errors":' + b"[" * 200_000)
        elif name == "no-http":
            yield b"\0\xff\x1b[31m" * 100_000
        elif name == "cut-off":
            yield _head(200, f"Content-Type: {MANIFEST}", "Content-Length: 1000") + b"{"
        elif name == "hang":
            await asyncio.Event().wait()
        elif name == "endless-header":
            yield b"HTTP/1.1 200 OK\r\n"
            while True:
                yield b"X-Header: x\r\n"
                await asyncio.sleep(PIECE_SECONDS)
        elif name in {"endless", "drip"}:
            yield _head(200, f"Content-Type: {MANIFEST}")
            async for piece in _endless(1 if name == "drip" else PIECE):
                yield piece
        else:
            content = MANIFESTS[name]()
            head = _head(200, f"Content-Type: {MANIFEST}", f"Content-Length: {len(content)}")
            yield head if method == "HEAD" else head + content


async def _endless(size: int = PIECE) -> AsyncIterator[bytes]:
    while True:
        yield b" " * size
        await asyncio.sleep(PIECE_SECONDS)


def _head(status: int, *lines: str) -> bytes:
    fields = ("Docker-Distribution-Api-Version: registry/2.0", "Connection: close", *lines)
    return "\r\n".join((f"HTTP/1.1 {status} Answer", *fields, "", "")).encode()


def _response(status: int, content: bytes) -> bytes:
    return _head(status, "Content-Type: application/json", f"Content-Length: {len(content)}") + content
