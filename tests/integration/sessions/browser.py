"""A headless Chromium, driven by the Chrome DevTools protocol over a pair of pipes: JSON messages that end in NUL."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.eventually import NEVER, eventually, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROGRAM = "chromium"
ARGUMENTS = (
    "--headless=new",
    # Chromium's own sandbox is not for root, who runs these tests; it goes to a page of the test's own only.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-proxy-server",
    "--remote-debugging-pipe",
)
_LARGEST = 64 << 20


class BrowserError(Exception):
    """The browser refused, or a page threw."""


class Page:
    """One page of a browser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._session = ""

    async def open(self) -> str:
        """Becomes another page of the browser, an empty one; returns which, for `show`."""
        self._session = ""
        target = (await self.send("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.send("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        return self._session

    def show(self, page: str) -> None:
        """Becomes a page again that was opened before."""
        self._session = page

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; what is reported besides is ignored."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        await self._writer.drain()
        while True:
            answer = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(answer["error"])
                return dict(answer["result"])

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, once it is settled."""
        found = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserError(found["exceptionDetails"])
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        """The first value of an expression that is true."""
        try:
            return await eventually(lambda: self.evaluate(expression), ignoring=BrowserError)
        except AssertionError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"{expression} does not come true; the page shows {text[-1000:]!r}") from None


@contextlib.asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """A page of a browser of its own."""
    to_browser, for_us = os.pipe()
    from_browser, for_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="retinue-chromium-") as directory:
        # The browser reads from descriptor 3 and writes to 4; a shell puts them there.
        script = f'exec 3<&{to_browser} 4>&{for_browser}; exec "$@"'
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script, "bash", PROGRAM, *ARGUMENTS, f"--user-data-dir={directory}"),
            pass_fds=(to_browser, for_browser),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HOME": directory},
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(for_browser)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LARGEST)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_browser, "rb", buffering=0)
        )
        writing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(for_us, "wb", buffering=0)
        )
        try:
            made = Page(reader, asyncio.StreamWriter(writing, protocol, None, loop))
            async with asyncio.timeout(NEVER):
                await made.open()
            yield made
        finally:
            writing.close()
            reading.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
            await asyncio.to_thread(_wait_gone, directory)


def _wait_gone(directory: str) -> None:
    """Returns once no process of the browser writes to its directory any more."""

    def writers() -> list[Path]:
        return [place for place in Path("/proc").glob("[0-9]*/cmdline") if directory.encode() in place.read_bytes()]

    # A process may end between its being listed and read.
    eventually_blocking(writers, [].__eq__, ignoring=OSError)
