"""The web proxy on the way to a manager: which one is taken, and what is said when it does not lead there."""

from __future__ import annotations

import asyncio

import pytest

from retinue.client.aio import Client, RetryBudget, Unavailable
from retinue.client.transport.proxy import proxy_for

PROXY = "http://proxy.example.org:3128"
QUICK = RetryBudget(first=0.001, longest=0.002, total=0.0)
VARIABLES = ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "no_grpc_proxy", "no_proxy", "NO_PROXY")


@pytest.mark.parametrize(
    ("host", "environ", "variable"),
    [
        ("m.example.org", {}, None),
        ("m.example.org", {"https_proxy": PROXY}, "https_proxy"),
        ("m.example.org", {"HTTPS_PROXY": "proxy.example.org:3128"}, "HTTPS_PROXY"),
        ("m.example.org", {"https_proxy": "", "HTTPS_PROXY": PROXY}, "HTTPS_PROXY"),
        ("m.example.org", {"grpc_proxy": PROXY, "https_proxy": "http://other"}, "grpc_proxy"),
        ("m.example.org", {"http_proxy": PROXY}, None),
        ("m.example.org", {"https_proxy": "socks5://proxy.example.org:1080"}, None),
        ("m.example.org", {"https_proxy": "http://[::1"}, None),
        ("m.example.org", {"https_proxy": "http://proxy:port"}, None),
        ("localhost", {"https_proxy": PROXY}, None),
        ("127.0.0.1", {"https_proxy": PROXY}, None),
        ("::1", {"https_proxy": PROXY}, None),
        ("m.example.org", {"https_proxy": PROXY, "no_proxy": "other.org, .example.org"}, None),
        ("m.example.org", {"https_proxy": PROXY, "NO_PROXY": "*"}, None),
        ("m.example.org", {"https_proxy": PROXY, "no_proxy": "ample.org,,"}, "https_proxy"),
        ("10.1.2.3", {"https_proxy": PROXY, "no_proxy": "10.0.0.0/8"}, None),
        ("10.1.2.3", {"https_proxy": PROXY, "no_proxy": "fd00::/8,10.2.0.0/16"}, "https_proxy"),
    ],
)
def test_a_proxy_is_found_as_other_programs_find_it(host: str, environ: dict[str, str], variable: str | None) -> None:
    found = proxy_for(host, environ)
    assert (found and found.variable) == variable
    if found is not None:
        assert (found.url, found.host, found.port) == (PROXY, "proxy.example.org", 3128)


async def test_a_client_asks_the_proxy_and_names_it_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        await writer.drain()
        writer.close()

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        # An address for documentation: nothing is there.
        async with Client.connect("192.0.2.1:7440", token="secret", ca=None, retry_budget=QUICK) as client:
            said = rf"the proxy 127\.0\.0\.1:{port} of \$HTTPS_PROXY makes no connection .* no_proxy .*403"
            with pytest.raises(Unavailable, match=said):
                await client.sessions.get("x")
    assert asked[0].startswith(b"CONNECT 192.0.2.1:7440 ")


async def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    async with Client.connect("192.0.2.1:7440", token="secret", ca=None, retry_budget=QUICK) as client:
        with pytest.raises(Unavailable, match=r"the proxy 127\.0\.0\.1:1 of \$https_proxy .*refused"):
            await client.sessions.get("x")
