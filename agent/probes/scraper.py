"""Reads the metrics that attempts show at their published ports, as often as a manager asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.errors import KernelRuntimeError, PortClosedError
from retinue.agent.network.errors import NetworkError
from retinue.agent.probes.core.exposition import read_metrics
from retinue.agent.probes.questions import connect
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.attempts import DesiredAttempt
    from retinue.agent.network.egress import Egress
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Kernel

_log = logging.getLogger(__name__)

MAX_PAGE = 1 << 20
"""Bytes of a page; of a larger one nothing is known."""
TIMEOUT = 2.0
"""Seconds for a whole page."""
FRESH_INTERVALS, FRESH_AT_LEAST = 2.5, 2 * TIMEOUT
"""A page is good for so many intervals, and so many seconds at the least."""
PARALLEL = 16
_MAX_HEADERS, _MAX_HEADER = 64, 8_192
_STATUS = re.compile(rb"HTTP/1\.[01] 200(?: |\r|\n)")
_NO_VALUES: Mapping[str, float] = {}


class PageError(Exception):
    """What an attempt answers is no page of metrics."""


@dataclass(frozen=True, slots=True)
class _Page:
    read_at: float
    values: Mapping[str, float]


class Scraper:
    """The metrics of attempts. All methods belong on one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        egress: Egress,
        desired: Callable[[], Mapping[str, DesiredAttempt]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._runtime = runtime
        self._egress = egress
        self._desired = desired
        self._clock = clock
        self._names: Mapping[str, frozenset[str]] = {}
        self._interval = 0.0
        self._pages: dict[str, _Page] = {}
        self._addresses: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(PARALLEL)
        self._changed = asyncio.Event()
        # Of attempts whose pages are not read, why.
        self._failing: dict[str, Retrying] = {}

    def watch(self, names: Mapping[str, frozenset[str]], interval: float) -> None:
        """Reads these metrics by attempt, every `interval` seconds, and no others."""
        self._names, self._interval = names, interval
        self._pages = {key: page for key, page in self._pages.items() if key in names}
        self._failing = {key: failing for key, failing in self._failing.items() if key in names}
        self._addresses = {key: address for key, address in self._addresses.items() if key in names}
        self._changed.set()

    def values(self, attempt_id: str) -> Mapping[str, float]:
        """Returns the newest values of an attempt's metrics; nothing that is no longer true."""
        page = self._pages.get(attempt_id)
        longest = max(FRESH_AT_LEAST, FRESH_INTERVALS * self._interval)
        return _NO_VALUES if page is None or self._clock() - page.read_at > longest else page.values

    async def run(self) -> None:
        """Reads until cancelled."""
        try:
            while True:
                self._changed.clear()
                for attempt_id in self._names.keys() - self._tasks.keys():
                    reading = self._read(attempt_id)
                    self._tasks[attempt_id] = asyncio.create_task(reading, name=f"metrics of {attempt_id}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval if self._names else None):
                        await self._changed.wait()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, attempt_id: str) -> None:
        try:
            await self._read_page(attempt_id)
            if (failing := self._failing.pop(attempt_id, None)) is not None:
                failing.succeed()
        except (
            TimeoutError,
            PageError,
            KernelRuntimeError,
            PortClosedError,
            NetworkError,
            OSError,
            ValueError,
        ) as error:
            self._fail(attempt_id, error)
        except Exception as error:  # noqa: BLE001  # whatever it was, the page is read again
            self._fail(attempt_id, error, unforeseen=error)
        finally:
            del self._tasks[attempt_id]

    def _fail(self, attempt_id: str, error: Exception, *, unforeseen: Exception | None = None) -> None:
        failing = self._failing.get(attempt_id)
        if failing is None:
            # What a program answers is its owner's to mend; a defect of ours is not.
            level = logging.INFO if unforeseen is None else logging.ERROR
            failing = Retrying(f"metrics of attempt {attempt_id} are not known", _log, level=level)
            if attempt_id in self._names:
                self._failing[attempt_id] = failing
        failing.fail(error, unforeseen=unforeseen)

    async def _read_page(self, attempt_id: str) -> None:
        wanted = self._desired().get(attempt_id)
        published = None if wanted is None else wanted.spec.published
        if published is None or not published.metrics_path:
            return
        async with self._slots:
            began = self._clock()
            if attempt_id not in self._addresses:
                self._addresses |= await self._egress.addresses([attempt_id])
            address = self._addresses.get(attempt_id) or "127.0.0.1"
            kernel = self._runtime.kernel(attempt_id)
            async with asyncio.timeout(TIMEOUT):
                page = await read_page(kernel, published.port, address, published.metrics_path)
        names = self._names.get(attempt_id, frozenset())
        self._pages[attempt_id] = _Page(began, await asyncio.to_thread(read_metrics, page, names))


async def read_page(kernel: Kernel, port: int, address: str, path: str) -> str:
    """Returns the body of a page. Raises PageError, PortClosedError, KernelRuntimeError, OSError, ValueError."""
    connection = await connect(kernel, port, address)
    reader, writer = await asyncio.open_connection(sock=connection, limit=_MAX_HEADER)
    try:
        # In version 1.0 a body is neither in chunks nor followed by another.
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: {address}:{port}\r\nUser-Agent: retinue-metrics\r\n"
            "Accept: text/plain; version=0.0.4\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        if not _STATUS.match(await reader.readline()):
            raise PageError(f"GET {path} does not answer 200")
        length = await _content_length(reader)
        body = bytearray()
        while len(body) < length and (piece := await reader.read(min(65_536, length - len(body)))):
            body += piece
        if len(body) > MAX_PAGE:
            raise PageError(f"GET {path} answers more than {MAX_PAGE} bytes")
    finally:
        writer.transport.abort()
    return body.decode(errors="replace")


async def _content_length(reader: asyncio.StreamReader) -> int:
    """Reads the header fields; returns how many bytes of the body to read,
    one more than may be where that is not said.
    """
    length = MAX_PAGE + 1
    for _ in range(_MAX_HEADERS):
        name, colon, value = (await reader.readline()).partition(b":")
        if not colon:
            return length
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            length = min(length, int(value.strip()[:20]))
        elif name.strip().lower() == b"transfer-encoding":
            raise PageError("the page is sent in chunks")
    raise PageError("the page has too many header fields")
