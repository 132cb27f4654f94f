"""Serves the counts of requests to Prometheus, by HTTP at a port of the router's own."""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import AsyncIterator, Iterator

from retinue.router.serving import Serving
from retinue.router.traffic import read_counts
from retinue.rpc.enrollment.managers import split_address

_SECONDS = 10.0


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
    for name, kind, text in (
        ("active", "gauge", "Requests in progress."),
        ("pending", "gauge", "Requests that wait for a replica."),
        ("requests", "counter", "Requests so far."),
        ("errors", "counter", "Answers with 5xx so far."),
    ):
        metric = f"retinue_endpoint_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
        lines += [
            f'{metric}{{project="{endpoint.project}",endpoint="{endpoint.name}",revision="{revision}"}} {getattr(found, name)}'
            for (key, revision), found in sorted(counts.items())
            if (endpoint := endpoints.get(key)) is not None
        ]
    lines += ["# HELP retinue_endpoint_held Requests that are held.", "# TYPE retinue_endpoint_held gauge"]
    lines += _held_lines(serving)
    lines += ["# HELP retinue_router_table_revision Table in force.", "# TYPE retinue_router_table_revision gauge"]
    lines.append(f"retinue_router_table_revision {serving.revision}")
    return "\n".join(lines) + "\n"


def _held_lines(serving: Serving) -> Iterator[str]:
    for key, count in sorted(serving.gate.held().items()):
        endpoint = serving.table.endpoints.get(key)
        if endpoint is not None:
            yield f'retinue_endpoint_held{{project="{endpoint.project}",endpoint="{endpoint.name}"}} {count}'
