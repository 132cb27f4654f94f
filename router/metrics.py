"""Serves the counts of requests to Prometheus, by HTTP at a port of the router's own."""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from retinue.router.serving import Serving
from retinue.router.traffic import read_counts
from retinue.rpc.enrollment.managers import split_address

_SECONDS = 10.0
_OF_REVISION = ("project", "endpoint", "revision")
_OF_ENDPOINT = ("project", "endpoint")


class Metric(NamedTuple):
    """One that a router serves: its type as Prometheus calls it, and its labels."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str

    def head(self) -> list[str]:
        """Returns the lines before its values."""
        return [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} {self.type}"]


COUNTS = {
    "active": Metric("retinue_endpoint_active", "gauge", _OF_REVISION, "Requests in progress."),
    "pending": Metric("retinue_endpoint_pending", "gauge", _OF_REVISION, "Requests that wait for a replica."),
    "requests": Metric("retinue_endpoint_requests_total", "counter", _OF_REVISION, "Requests so far."),
    "errors": Metric("retinue_endpoint_errors_total", "counter", _OF_REVISION, "Answers with 5xx so far."),
}
"""By the name of the count that they show."""
HELD = Metric("retinue_endpoint_held", "gauge", _OF_ENDPOINT, "Requests that are held.")
TABLE = Metric("retinue_router_table_revision", "gauge", (), "Table in force.")
METRICS = (*COUNTS.values(), HELD, TABLE)


@contextlib.asynccontextmanager
async def serving_metrics(address: str, serving: Serving) -> AsyncIterator[int]:
    """Serves at `host:port` while the block lasts; the value is the port. Raises OSError and ValueError."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = await _answer(head, serving)
                writer.write(
                    f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; version=0.0.4\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()

    host, port = split_address(address)
    server = await asyncio.start_server(answer, host, port)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _answer(head: bytes, serving: Serving) -> tuple[http.HTTPStatus, bytes]:
    if not head.startswith((b"GET /metrics ", b"GET /metrics?")):
        return http.HTTPStatus.NOT_FOUND, b""
    try:
        return http.HTTPStatus.OK, (await _text(serving)).encode()
    except OSError:
        return http.HTTPStatus.SERVICE_UNAVAILABLE, b""


async def _text(serving: Serving) -> str:
    """Returns the counts in the text format of Prometheus, per endpoint and revision. Raises OSError."""
    counts, endpoints = await read_counts(serving), serving.table.endpoints
    lines: list[str] = []
    for name, metric in COUNTS.items():
        lines += metric.head()
        lines += [
            f'{metric.name}{{project="{endpoint.project}",endpoint="{endpoint.name}",revision="{revision}"}} {getattr(found, name)}'
            for (key, revision), found in sorted(counts.items())
            if (endpoint := endpoints.get(key)) is not None
        ]
    lines += [*HELD.head(), *_held_lines(serving)]
    lines += [*TABLE.head(), f"{TABLE.name} {serving.revision}"]
    return "\n".join(lines) + "\n"


def _held_lines(serving: Serving) -> Iterator[str]:
    for key, count in sorted(serving.gate.held().items()):
        endpoint = serving.table.endpoints.get(key)
        if endpoint is not None:
            yield f'{HELD.name}{{project="{endpoint.project}",endpoint="{endpoint.name}"}} {count}'
