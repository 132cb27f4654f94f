"""What reaches a program by its endpoint and by the gateway is what it is sent directly, and so are its answers."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.integration.proxy.edges import Edge, edges
from tests.integration.proxy.recorder import Message, Recorder, read_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.asyncio(loop_scope="module")

# What proxies say of themselves and of the client, and what is for one connection only.
_ADDED = {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id", "date"}
_HOP = {
    "connection",
    "keep-alive",
    "upgrade",
    "http2-settings",
    "te",
    "transfer-encoding",
    "content-length",
    "host",
    "cookie",
}

_LINES = "".join(f"x-line-{number}: {number}\r\n" for number in range(300))
REQUESTS = {
    "plain": "GET / HTTP/1.1\r\n",
    "HTTP/1.0": "GET /old HTTP/1.0\r\n",
    "HTTP/1.0 that keeps its connection": "GET /old HTTP/1.0\r\nConnection: keep-alive\r\n",
    "an offer of TLS": "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\n",
    "an offer of HTTP/2": "GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "an offer of several": "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: TLS/1.3, h2c\r\n",
    "an unknown offer": "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: web\r\n",
    "an offer with a body": "POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\nContent-Length: 2\r\n\r\nab",
    "an address": "GET http://{host}/a?b=c HTTP/1.1\r\n",
    "an underscore": "GET / HTTP/1.1\r\nX_Own_Name: a\r\n",
    "two slashes": "GET //a//b/ HTTP/1.1\r\n",
    "dots": "GET /a/./b/../c HTTP/1.1\r\n",
    "dots above the root": "GET /../../etc HTTP/1.1\r\n",
    "an escaped slash": "GET /a%2Fb%2fc HTTP/1.1\r\n",
    "escaped dots": "GET /%2e%2e/%2E%2E/a HTTP/1.1\r\n",
    "escapes of letters": "GET /%61%62?%63=%64 HTTP/1.1\r\n",
    "a backslash": "GET /a%5cb HTTP/1.1\r\n",
    "parameters": "GET /a;b=c/d?e=f;g&e=;&&=?/ HTTP/1.1\r\n",
    "a question mark alone": "GET /a? HTTP/1.1\r\n",
    "an odd escape": "GET /100%?q=%zz HTTP/1.1\r\n",
    "a long address": f"GET /{'a' * 20_000}?{'b' * 10_000} HTTP/1.1\r\n",
    "a long header": f"GET / HTTP/1.1\r\nX-Long: {'x' * 50_000}\r\n",
    "many headers": f"GET / HTTP/1.1\r\n{_LINES}",
    "a header twice": "GET / HTTP/1.1\r\nX-Twice: 1\r\nX-Other: 2\r\nX-Twice: 3\r\nAccept: a\r\nAccept: b\r\n",
    "an empty header": "GET / HTTP/1.1\r\nX-Empty:\r\n",
    "Latin letters": "GET / HTTP/1.1\r\nX-Latin: caf\xe9\r\n",
    "preferences": 'GET / HTTP/1.1\r\nAccept-Encoding: gzip, br;q=0.5\r\nRange: bytes=0-9\r\nIf-None-Match: W/"a"\r\nTE: gzip\r\n',
    "credentials": "GET / HTTP/1.1\r\nAuthorization: Basic YTpi\r\nProxy-Authorization: Basic YTpi\r\n",
    "HEAD": "HEAD /a HTTP/1.1\r\n",
    "OPTIONS": "OPTIONS /a HTTP/1.1\r\nOrigin: http://{host}\r\nAccess-Control-Request-Method: PUT\r\n",
    "PURGE": "PURGE /a HTTP/1.1\r\n",
    "PROPFIND": "PROPFIND /a HTTP/1.1\r\nDepth: 1\r\nContent-Length: 1\r\n\r\n<",
    "a body of GET": "GET /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "a body of DELETE": "DELETE /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "no body of POST": "POST /a HTTP/1.1\r\nContent-Length: 0\r\n",
    "a large body": f"PUT /a HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n{'x' * 3_000_000}",
    "chunks": "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "trailers": "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n3\r\nabc\r\n0\r\nX-End: 7\r\n\r\n",
}


def _answer(status: str, *lines: str, body: bytes = b"", sized: bool = True) -> bytes:
    head = [f"HTTP/1.1 {status}", *([f"Content-Length: {len(body)}"] if sized else []), *lines, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


_CHUNKS = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n"
ANSWERS = {
    "a body": _answer(
        "200 OK", "Content-Type: text/plain; charset=utf-8", "Date: Thu, 01 Jan 2026 00:00:00 GMT", body=b"hello"
    ),
    "chunks": _answer("200 OK", "Transfer-Encoding: chunked", body=_CHUNKS + b"\r\n", sized=False),
    "trailers": _answer(
        "200 OK", "Transfer-Encoding: chunked", "Trailer: X-End", body=_CHUNKS + b"X-End: 7\r\n\r\n", sized=False
    ),
    "a body up to the end": _answer("200 OK", "Connection: close", body=b"to the end", sized=False),
    "an answer of HTTP/1.0": b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nto the end",
    "compressed": _answer("200 OK", "Content-Encoding: gzip", "Vary: Accept-Encoding", body=gzip.compress(b"a" * 5000)),
    "large and not compressed": _answer("200 OK", "Content-Type: text/html", body=b"<p>" * 50_000),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n',
    "a redirect": _answer("302 Found", "Location: /a//b/../c?d=%2F#e"),
    "a redirect elsewhere": _answer("301 Moved Permanently", "Location: http://127.0.0.1:8080/a"),
    "a part": _answer("206 Partial Content", "Content-Range: bytes 0-1/9", body=b"ab"),
    "two lines of one header": _answer(
        "200 OK", "Set-Cookie: a=1; Path=/", "Set-Cookie: b=2", "Link: <a>", "Link: <b>"
    ),
    "a long header": _answer("200 OK", f"X-Long: {'x' * 50_000}"),
    "many headers": _answer("200 OK", *_LINES.split("\r\n")[:-1], body=b"many"),
    "a server of its own": _answer("200 OK", "Server: program/1.0", "Via: 1.1 own", "X-Powered-By: it", "X_Under: a"),
    "its own limits": _answer(
        "200 OK", "Strict-Transport-Security: max-age=1", "X-Frame-Options: DENY", "Keep-Alive: timeout=5"
    ),
    "Latin letters": _answer("200 OK", "X-Latin: caf\xe9"),
    **{
        f"status {status}": _answer(
            f"{status} Status", "Retry-After: 7", "WWW-Authenticate: Basic realm=own", body=b"its own"
        )
        for status in (
            *(201, 207, 299, 400, 401, 403, 404, 405, 408, 410, 413, 418, 421, 426, 429, 431, 451, 499),
            *(500, 501, 502, 503, 504, 511, 599),
        )
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorder() -> AsyncIterator[Recorder]:
    async with Recorder() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ways(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Edge]]:
    async with edges(Path(tmp_path_factory.mktemp("edges")), recorder.port) as found:
        yield found


async def exchange(edge: Edge, message: str, *, host: str = "") -> Message:
    """Sends a request with the host that is asked for there; returns the answer."""
    head, blank, body = message.partition("\r\n\r\n")
    first, _, lines = (head + "\r\n" if blank else head).partition("\r\n")
    text = f"{first}\r\nHost: {host or edge.host}\r\n{lines}".replace("{host}", edge.host)
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port, limit=1 << 20)
    try:
        writer.write(text.encode("latin-1") + edge.access + b"\r\n" + body.encode("latin-1"))
        return await read_message(reader, bodiless=first.startswith("HEAD "), to_end=True)
    finally:
        writer.close()


def shown(message: Message, edge: Edge) -> tuple[object, ...]:
    """Returns what counts of a message, with the host left out: of one header all values, in their order."""
    first = message.first.split(" ")
    # The protocol belongs to the connection, and the words after a status to nobody.
    first = first[1:2] if first[0].startswith("HTTP/") else first[:2]
    values: dict[str, list[str]] = defaultdict(list)
    for name, value in message.headers:
        if name not in _ADDED | _HOP:
            values[name] += [value] if name == "set-cookie" else re.split(r",\s*", value.replace(edge.host, "HOST"))
    return [part.replace(f"http://{edge.host}", "") for part in first], values, message.body, message.trailers


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_program_gets_the_request_that_it_is_sent(ways: list[Edge], recorder: Recorder, name: str) -> None:
    recorder.answer = ANSWERS["a body"]
    seen = []
    for edge in ways:
        recorder.requests.clear()
        answer = await exchange(edge, REQUESTS[name])
        assert answer.first.split(" ")[1] == "200", (edge.name, answer)
        [request] = recorder.requests
        assert request.header("host") == edge.host
        seen.append(shown(request, edge))
    for edge, other in zip(ways[1:], seen[1:], strict=True):
        assert other == seen[0], edge.name


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_client_gets_the_answer_that_the_program_gives(ways: list[Edge], recorder: Recorder, name: str) -> None:
    recorder.answer = ANSWERS[name]
    for request in ("GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nConnection: close\r\n", "GET / HTTP/1.0\r\n"):
        direct, *others = [(edge, await exchange(edge, request)) for edge in ways]
        expected = shown(direct[1], direct[0])
        if "1.0" in request:
            # There are no chunks in it, and so nothing after them.
            expected = (*expected[:-1], ())
        for edge, answer in others:
            assert shown(answer, edge) == expected, (edge.name, request)


@pytest.mark.parametrize("spelled", [str.upper, lambda host: ".:".join(host.split(":")) if ":" in host else f"{host}."])
async def test_a_host_may_be_spelled_in_other_ways(
    ways: list[Edge], recorder: Recorder, spelled: Callable[[str], str]
) -> None:
    recorder.answer = ANSWERS["no content"]
    for edge in ways[1:]:
        answer = await exchange(edge, "GET / HTTP/1.1\r\n", host=spelled(edge.host))
        assert answer.first.split(" ")[1] == "204", edge.name


async def test_programs_see_the_port_that_clients_use(ways: list[Edge], recorder: Recorder) -> None:
    recorder.answer, recorder.requests = ANSWERS["no content"], []
    for edge in ways[1:]:
        host = f"{edge.host.partition(':')[0]}:{edge.port}"
        answer = await exchange(edge, "GET / HTTP/1.1\r\nX-Forwarded-Host: made.up\r\n", host=host)
        assert answer.first.split(" ")[1] == "204", (edge.name, answer)
        request = recorder.requests[-1]
        assert (request.header("host"), request.header("x-forwarded-host")) == (host, host)
        assert [value for name, value in request.headers if name == "x-forwarded-host"] == [host]
        assert request.header("x-forwarded-proto") == "http"
