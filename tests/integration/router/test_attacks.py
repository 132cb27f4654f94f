"""Clients that want more than they may: foreign hosts and tokens, floods of connections, streams and held requests."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING

import pytest

from retinue.router.core.table import Access, Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Drip, Multiplexed, read_answer, request
from tests.integration.router.running import COMMON, HOST, Running, replicas, running, token, toy
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as found:
        yield found


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with Backend("a") as found:
        yield found


async def raw(port: int, message: bytes) -> bytes:
    """Returns all that comes until the router closes; it waits for the end of a request that has none in `message`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(message)
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.attack("hosts-of-endpoints")
async def test_a_token_is_good_where_the_request_goes_whatever_names_that(router: Running, backend: Backend) -> None:
    only = Revision(1, 100, replicas=replicas(backend.port))
    endpoint, other = toy(only, access=Access()), toy(only, hosts=("other.test",), access=Access())
    await router.serve(endpoint, other)
    await router.listening()
    key = f"api-key: {token(endpoint.id)}\r\nconnection: close\r\n\r\n".encode()
    refused = {
        b"GET / HTTP/1.1\r\nhost: other.test\r\n": 403,
        b"GET / HTTP/1.1\r\nhost: OTHER.test:99\r\n": 403,
        b"GET http://other.test/ HTTP/1.1\r\nhost: toy.test\r\n": 403,
        b"GET / HTTP/1.1\r\nhost: toy.test\r\nhost: other.test\r\n": 404,
        b"GET / HTTP/1.1\r\nhost: other.test\r\nx-forwarded-host: toy.test\r\nx-host: toy.test\r\n": 403,
        b"CONNECT other.test:80 HTTP/1.1\r\nhost: toy.test\r\n": 404,
    }
    answers = await asyncio.gather(*(raw(router.port, head + key) for head in refused))
    assert [int(answer.split(b" ")[1]) for answer in answers] == list(refused.values())
    assert backend.requests == 0
    assert b" 200 " in await raw(router.port, b"GET / HTTP/1.1\r\nhost: TOY.test:8443\r\n" + key)


@pytest.mark.attack("tokens-of-endpoints")
async def test_tokens_that_were_made_up_are_refused(router: Running, backend: Backend) -> None:
    endpoint = toy(Revision(1, 100, replicas=replicas(backend.port)), access=Access(revoked=("t2",)))
    await router.serve(endpoint)
    await router.listening()

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = part({"iss": "retinue", "aud": endpoint.id, "jti": "t1", "exp": int(time.time()) + 3600})
    none = f"{part({'alg': 'none'})}.{claims}."
    symmetric = f"{part({'alg': 'HS256'})}.{claims}"
    mac = hmac.new(COMMON.token_key, symmetric.encode(), hashlib.sha256).digest()
    symmetric += "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
    for made_up in (none, symmetric, "", "x", "a.b.c", token(endpoint.id) + "x"):
        assert (await request(router.port, HOST, authorization=f"Bearer {made_up}")).status == 401, made_up
    # Nor does one that is good help one that is not, in either place.
    good, revoked = token(endpoint.id), token(endpoint.id, jti="t2")
    assert (await request(router.port, HOST, api_key=revoked)).status == 403
    for fields in (
        {"authorization": f"Bearer {revoked}", "api_key": "x"},
        {"authorization": "Bearer x", "api_key": revoked},
    ):
        assert (await request(router.port, HOST, fields=fields)).status in {401, 403}
    assert (await request(router.port, HOST, method="OPTIONS", origin="https://page.test")).status == 401
    assert backend.requests == 0
    assert (await request(router.port, HOST, api_key=good)).status == 200


@pytest.mark.attack("tokens-of-endpoints")
async def test_an_upgrade_needs_a_token_of_the_endpoint(router: Running, backend: Backend) -> None:
    endpoint = toy(Revision(1, 100, replicas=replicas(backend.port)), access=Access())
    other = toy(Revision(1, 100, replicas=replicas(backend.port)), access=Access(), hosts=("other.test",))
    await router.serve(endpoint, other)
    await router.listening()
    begin = f"GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: upgrade, http2-settings\r\n".encode()
    settings = b"http2-settings: AAMAAABkAAQAAP__\r\n"
    foreign = f"api-key: {token(other.id)}\r\n".encode()
    for protocol in (b"websocket", b"h2c", b"WebSocket", b"websocket, h2c"):
        upgrade = begin + settings + b"upgrade: " + protocol + b"\r\n"
        # Frames that come with the request are none of an upgrade that was refused.
        for fields, status in ((b"", 401), (foreign, 403)):
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            writer.write(upgrade + fields + b"\r\n" + b"\x81\x05hello")
            assert int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]) == status
            writer.close()
    assert backend.requests == 0


@pytest.mark.attack("floods-at-routers")
async def test_bodies_that_stop_end_as_silence_does(router: Running, backend: Backend) -> None:
    only = Revision(1, 100, replicas=replicas(backend.port))
    await router.serve(toy(only, routing=Routing(idle_timeout=3.0)), toy(only, hosts=("other.test",)))
    await router.listening()
    begin = f"POST / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n".encode()
    # One that continues may take its time: longer than those that came later and are silent.
    continuing = Drip(router.port, begin + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n", b"0\r\n\r\n")
    await eventually(lambda: continuing.pieces)
    slow = [
        asyncio.create_task(raw(router.port, begin + framing))
        for framing in (b"content-length: 9\r\n\r\nx", b"transfer-encoding: chunked\r\n\r\n9\r\nx")
        for _ in range(100)
    ]
    assert (await request(router.port, "other.test")).status == 200
    answers = await asyncio.gather(*slow)
    assert {answer.split(b" ")[1] for answer in answers} <= {b"408", b"504"}
    head, _, body = (await continuing.finished()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["size"] == continuing.pieces
    await eventually(lambda: backend.active == 0)


@pytest.mark.attack("floods-at-routers")
async def test_clients_that_send_their_headers_drop_by_drop_are_sent_away(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.router.core.listener._HEADERS_SECONDS", 3)
    async with running(tmp_path) as router:
        await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
        await router.listening()
        slow = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(200)]
        try:
            for _, writer in slow:
                writer.write(b"GET / HTTP/1.1\r\nhost: toy")
            assert (await request(router.port, HOST)).status == 200
            answers = await asyncio.gather(*(reader.read() for reader, _ in slow))
            assert all(b" 408 " in answer for answer in answers)
        finally:
            for _, writer in slow:
                writer.close()


@pytest.mark.attack("floods-at-routers")
async def test_headers_without_end_are_refused(router: Running, backend: Backend) -> None:
    await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
    await router.listening()
    assert (await request(router.port, HOST, x_long="x" * 100_000)).status == 431
    assert (await request(router.port, HOST, fields={f"x_{number}": "x" for number in range(2000)})).status == 431
    assert backend.requests == 0


@pytest.mark.attack("floods-at-routers")
async def test_a_client_that_takes_all_its_requests_back_ends_its_own_connection_only(
    router: Running, backend: Backend
) -> None:
    await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
    await router.listening()
    engine = router.serving.engine.pid
    good, bad = await Multiplexed.open(router.port), await Multiplexed.open(router.port)
    for _ in range(5000):
        bad.reset(bad.begin(HOST))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await bad.read(5000)
    for _ in range(50):
        good.begin(HOST)
    await good.read(50)
    assert (good.good, good.bad) == (50, 0)
    assert router.serving.engine.pid == engine
    for connection in (good, bad):
        connection.close()


async def test_thousands_of_requests_are_held_and_none_is_lost(router: Running, backend: Backend) -> None:
    # More than 3,000 wait for gRPC's server, and more than 10,000 frames in the engine.
    held = 6_000
    asleep = toy(Revision(1, 100), routing=Routing(hold_limit=held))
    await router.serve(asleep)
    await router.listening()
    connections = [await Multiplexed.open(router.port) for _ in range(40)]
    for connection in connections:
        for _ in range(held // len(connections)):
            connection.begin(HOST)
    await eventually(lambda: router.serving.gate.held() == {asleep.id: held})
    answer = await request(router.port, HOST)
    assert (answer.status, answer.json["error"]["code"]) == (503, "STARTING")
    awake = Revision(1, 100, replicas=replicas(backend.port))
    await router.serve(toy(awake, id=asleep.id, routing=asleep.routing))
    await asyncio.gather(*(connection.read(held // len(connections)) for connection in connections))
    assert sum(connection.good for connection in connections) == held
    for connection in connections:
        connection.close()


async def test_what_breaks_off_stays_broken_off(router: Running, backend: Backend) -> None:
    await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
    await router.listening()
    with pytest.raises(asyncio.IncompleteReadError):
        await request(router.port, HOST, "/cut")


async def test_a_client_may_wait_with_its_body_until_the_replica_wants_it(router: Running, backend: Backend) -> None:
    await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
    await router.listening()
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(f"POST / HTTP/1.1\r\nhost: {HOST}\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(b"abc")
    assert (await read_answer(reader)).json["size"] == 3
    # Events come one by one, before the answer is whole.
    writer.write(f"GET /ticking HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
    await reader.readuntil(b"data: 0")
    assert backend.active == 1
    writer.close()
