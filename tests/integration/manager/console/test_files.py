"""The files of the console, and the headers of every answer."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
from typing import TYPE_CHECKING

import pytest

from retinue.manager.console.core import documents
from retinue.manager.gateway import sockets
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from tests.integration.manager.console.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_before_it_is_built(console: Served) -> None:
    answer = await console.page().send("GET", "/")
    assert (answer.status, b"make console" in answer.body) == (503, True)
    assert answer.headers["cache-control"] == "no-store"


async def test_files_and_documents(console: Served) -> None:
    assets = console.static / "assets"
    assets.mkdir()
    for name in ("index", "terminal", "output"):
        (console.static / f"{name}.html").write_text(name)
    (console.static / "favicon.svg").write_text("<svg/>")
    (assets / "index-Bq1.js").write_text("plain")
    (assets / "index-Bq1.js.gz").write_bytes(gzip.compress(b"packed"))
    (console.static.parent / "secret").write_text("secret")
    page = console.page()
    own = documents.HEADERS["Content-Security-Policy"]
    for path, (body, policy) in {
        "/": ("index", own),
        "/sessions/1?q=a": ("index", own),
        "/login": ("index", own),
        "/nothing.txt": ("index", own),
        "/terminal/1/main1": ("terminal", documents.TERMINAL.headers["Content-Security-Policy"]),
        "/output": ("output", documents.OUTPUT.headers["Content-Security-Policy"]),
        "/favicon.svg": ("<svg/>", own),
    }.items():
        answer = await page.send("GET", path)
        assert (answer.status, answer.body.decode()) == (200, body), path
        shown = {name: answer.headers[name.lower()] for name in documents.HEADERS}
        assert shown == {**documents.HEADERS, "Content-Security-Policy": policy}, path
    answer = await page.send("GET", "/assets/index-Bq1.js")
    assert (answer.body, answer.headers["cache-control"]) == (b"plain", "public, max-age=31536000, immutable")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    answer = await page.send("GET", "/assets/index-Bq1.js", {"Accept-Encoding": "gzip"})
    assert (gzip.decompress(answer.body), answer.headers["content-encoding"]) == (b"packed", "gzip")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/assets/none.js", "/assets/../index.html", "/../secret", "/assets/..%2f..%2fsecret", "/..%2fsecret"):
        answer = await page.send("GET", path)
        assert b"secret" not in answer.body, path
        assert answer.headers["x-content-type-options"] == "nosniff"
    refused = await page.send("POST", "/login")
    assert {name: refused.headers[name.lower()] for name in documents.HEADERS} == dict(documents.HEADERS)


@pytest.mark.parametrize("other", [0, 1])
async def test_only_one_user_of_the_machine_is_let_in(other: int) -> None:
    name = sockets.new_name()
    with sockets.listen(name) as listening, socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{name}")
        client.settimeout(NEVER)
        connections = sockets.accepted(listening, os.geteuid() + other)
        accepting = asyncio.ensure_future(anext(connections))
        try:
            if other:
                assert await asyncio.to_thread(client.recv, 1) == b""
                assert not accepting.done()
            else:
                (await accepting).close()
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])
