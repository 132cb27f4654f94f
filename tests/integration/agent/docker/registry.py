"""Registries of images for tests: Debian's `docker-registry` on the loopback,
and a proxy in front of it that can be shut.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING, Self

from retinue.devtools.cluster import free_ports
from tests.integration.agent.docker.engine import IMAGE
from tests.support.eventually import NEVER, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.integration.agent.docker.engine import TestEngine

USER, PASSWORD = "reader", "open sesame"
# Made by `htpasswd -nbB`, with the least cost.
_HASH = "$2y$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy"
_CONFIGURATION = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {images}}}}}
http: {{addr: "127.0.0.1:{port}"}}
log: {{level: error}}
"""
_PASSWORDS = "auth: {{htpasswd: {{realm: test, path: {directory}/passwords}}}}\n"


class Registry:
    """One registry; with `closed`, it wants a password. In a network namespace if `namespace` is given.

    Several may have their `images` in one place.
    """

    def __init__(
        self,
        directory: Path,
        *,
        closed: bool = False,
        namespace: str = "",
        port: int = 0,
        images: Path | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_ports()[0]
        self.images = images or directory / "images"
        self._namespace = namespace
        configuration = directory / f"registry-{self.port}.yml"
        text = _CONFIGURATION + (_PASSWORDS if closed else "")
        configuration.write_text(text.format(directory=directory, port=self.port, images=self.images))
        (directory / "passwords").write_text(f"{USER}:{_HASH}\n")
        enter = ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []
        with (directory / "log").open("ab") as log:
            command = [*enter, "docker-registry", "serve", str(configuration)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait(NEVER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """`HOST:PORT`, the start of references."""
        return f"127.0.0.1:{self.port}"

    def push(self, engine: TestEngine, image: str, name: str, tag: str = "1") -> str:
        """Puts an image of an engine into the registry; the reference, which the engine does not know afterwards."""
        repository = f"{self.address}/{name}"
        login = {"username": USER, "password": PASSWORD}
        client = engine.client()
        try:
            client.tag(image, repository, tag)

            def errors() -> list[str]:
                answer = client.push(repository, tag, stream=True, decode=True, auth_config=login)
                return [event["error"] for event in answer if "error" in event]

            # It may be starting.
            eventually_blocking(errors, [].__eq__)
            client.remove_image(f"{repository}:{tag}")
        finally:
            client.close()
        return f"{repository}:{tag}"


class StallingProxy:
    """A port in front of a registry. After `shut_after` bytes in all it lets no more through,
    until it is opened or closed.
    """

    def __init__(self, port: int, shut_after: int) -> None:
        self._port = port
        self._left = shut_after
        self._open = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.stalled = asyncio.Event()
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def open(self) -> None:
        """Lets everything through from now on."""
        self._open.set()

    async def close(self) -> None:
        """Ends all connections and takes no others."""
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        self.connections += 1
        ends = [writer]
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
            ends.append(inner_writer)
            up = asyncio.create_task(self._pass(reader, inner_writer, bounded=False))
            down = asyncio.create_task(self._pass(inner_reader, writer, bounded=True))
            try:
                await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # The server would complain of it.
                pass
            finally:
                for half in (up, down):
                    half.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        finally:
            self.connections -= 1
            self._links.discard(task)
            for end in ends:
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, bounded: bool) -> None:
        while data := await reader.read(65_536):
            if bounded and not self._open.is_set():
                self._left -= len(data)
                if self._left <= 0:
                    self.stalled.set()
                    await self._open.wait()
            writer.write(data)
            await writer.drain()


def make_image(engine: TestEngine, name: str, *, size: int = 0, labels: Mapping[str, str] | None = None) -> str:
    """An image like the test image's, of a layer more with so many bytes that do not compress, and with labels."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        dockerfile = [f"FROM {IMAGE}", *(f"LABEL {key}={value!r}" for key, value in (labels or {}).items())]
        if size:
            dockerfile.append("COPY ballast /ballast")
            _add(archive, "ballast", os.urandom(size))
        _add(archive, "Dockerfile", "\n".join(dockerfile).encode())
    content.seek(0)
    client = engine.client()
    try:
        events = list(client.build(fileobj=content, custom_context=True, tag=name, rm=True, decode=True))
        assert not [event for event in events if "error" in event], events
    finally:
        client.close()
    return name


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
