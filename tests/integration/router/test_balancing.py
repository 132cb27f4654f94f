"""Which replica gets a request: hashes, turns, sticky clients, retries, and replicas that are taken out."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retinue.router.core.table import Access, Algorithm, Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Load, request
from tests.integration.router.running import HOST, Running, replicas, running, token, toy
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as found:
        yield found


@pytest.fixture
async def backends() -> AsyncIterator[list[Backend]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Backend(name)) for name in "abcd"]


def all_of(backends: list[Backend], max_concurrency: int = 0) -> Revision:
    ports = (backend.port for backend in backends)
    return Revision(1, 100, max_concurrency=max_concurrency, replicas=replicas(*ports))


async def test_the_same_value_leads_to_the_same_replica(router: Running, backends: list[Backend]) -> None:
    kinds = {
        "header": Routing(Algorithm.HASH, hash_header="x-user"),
        "cookie": Routing(Algorithm.HASH, hash_cookie="user"),
        "source": Routing(Algorithm.HASH),
    }
    endpoints = {
        name: toy(all_of(backends), hosts=(f"{name}.test",), routing=routing) for name, routing in kinds.items()
    }
    await router.serve(*endpoints.values())
    await router.listening()

    async def name(kind: str, value: int) -> str:
        fields = {"header": {"x_user": f"u{value}"}, "cookie": {"cookie": f"other=1; user=u{value}"}}.get(kind, {})
        source = f"127.0.0.{value + 2}" if kind == "source" else "127.0.0.1"
        return str((await request(router.port, f"{kind}.test", source=source, fields=fields)).json["name"])

    for kind, endpoint in endpoints.items():
        first = {value: await name(kind, value) for value in range(16)}
        assert len(set(first.values())) > 1, kind
        assert {value: await name(kind, value) for value in range(16)} == first, kind
        # One that goes takes few values with it.
        gone = backends[0]
        await router.serve(replace(endpoint, revisions=(all_of(backends[1:]),)))
        after = {value: await name(kind, value) for value in range(16)}
        assert gone.name not in after.values()
        kept = [value for value in first if first[value] != gone.name]
        assert sum(after[value] == first[value] for value in kept) >= len(kept) - 4, kind


async def test_replicas_take_turns(router: Running, backends: list[Backend]) -> None:
    await router.serve(toy(all_of(backends), routing=Routing(Algorithm.ROUND_ROBIN)))
    await router.listening()
    names = [(await request(router.port, HOST)).json["name"] for _ in range(12)]
    assert Counter(names) == Counter("abcd" * 3)
    assert names[:4] == names[4:8] == names[8:]


async def test_a_client_stays_with_its_replica_by_the_cookie_until_that_is_gone(
    router: Running, backends: list[Backend]
) -> None:
    endpoint = toy(
        all_of(backends), routing=Routing(Algorithm.ROUND_ROBIN, affinity_cookie="seat", affinity_lifetime=60)
    )
    await router.serve(endpoint)
    await router.listening()
    first = await request(router.port, HOST)
    cookie, *attributes = first.headers["set-cookie"].split("; ")
    assert cookie.startswith("seat=")
    assert {"Max-Age=60", "HttpOnly"} <= set(attributes)
    names = [(await request(router.port, HOST, cookie=cookie)).json["name"] for _ in range(8)]
    assert set(names) == {first.json["name"]}
    # A replica that drains takes nothing new, not even from clients with affinity to it.
    (own,) = (backend.port for backend in backends if backend.name == first.json["name"])
    left = tuple(replace(found, draining=found.port == own) for found in all_of(backends).replicas)
    await router.serve(replace(endpoint, revisions=(Revision(1, 100, replicas=left),)))
    moved = await request(router.port, HOST, cookie=cookie)
    assert moved.status == 200
    assert moved.headers["set-cookie"].split("; ")[0] != cookie
    # A cookie of the client's own making leads nowhere else.
    assert (await request(router.port, HOST, cookie="seat=MTkyLjAuMi4xOjk=")).status == 200


async def test_nothing_that_was_sent_is_sent_again_unless_it_may_be(router: Running, backends: list[Backend]) -> None:
    plain = toy(all_of(backends))
    again = toy(all_of(backends), hosts=("again.test",), routing=Routing(retry_idempotent=True))
    await router.serve(plain, again)
    await router.listening()

    async def sent(host: str, path: str, method: str = "GET", **fields: str) -> int:
        before = sum(backend.requests for backend in backends)
        answer = await request(router.port, host, path, method=method, fields=fields)
        assert answer.status in {502, 503}
        return sum(backend.requests for backend in backends) - before

    for path in ("/break", "/status?503"):
        assert await sent(HOST, path) == 1
        assert await sent(HOST, path, idempotency_key="k") == 1
        for method in ("POST", "PATCH"):
            assert await sent("again.test", path, method) == 1
    # Others are tried at most three times more, each at another replica.
    # Each that fails is a reason to take a replica out.
    for path in ("/break", "/status?503"):
        assert 2 <= await sent("again.test", path) <= 4
        assert 2 <= await sent("again.test", path, "POST", idempotency_key="k") <= 4


async def test_connections_that_are_refused_cost_no_request_and_take_the_replica_out(
    router: Running, backends: list[Backend]
) -> None:
    await backends[0].stop()
    await router.serve(toy(all_of(backends)))
    await router.listening()
    answers = [await request(router.port, HOST, method="POST", body=b"x") for _ in range(30)]
    assert {answer.status for answer in answers} == {200}
    assert all(answer.json["size"] == 1 for answer in answers)


async def test_a_replica_that_only_fails_is_taken_out(
    router: Running, backends: list[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It rests for longer than this takes.
    monkeypatch.setattr("retinue.router.core.clusters._EJECTION_SECONDS", NEVER)
    backends[0].status = 503
    await router.serve(toy(all_of(backends), routing=Routing(Algorithm.ROUND_ROBIN)))
    await router.listening()
    statuses = [(await request(router.port, HOST)).status for _ in range(40)]
    # Five failures.
    assert Counter(statuses) == Counter({200: 35, 503: 5})
    assert backends[0].requests == 5


async def test_thirty_clients_meet_a_limit_of_four(router: Running, backends: list[Backend]) -> None:
    for backend in backends:
        backend.delay = 0.02
    await router.serve(toy(all_of(backends[:3], max_concurrency=4)))
    await router.listening()
    async with Load(router.port, HOST, clients=30) as load:
        await load.sent_more(400)
    assert load.lost == []
    assert [backend.most for backend in backends[:3]] == [4, 4, 4]


async def test_a_rate_is_each_tokens_own(router: Running, backends: list[Backend]) -> None:
    endpoint = toy(all_of(backends), access=Access(rate_requests=3, rate_period=60))
    await router.serve(endpoint)
    await router.listening()

    async def statuses(key: str) -> list[int]:
        return [(await request(router.port, HOST, api_key=key)).status for _ in range(5)]

    for jti in ("one", "two"):
        assert await statuses(token(endpoint.id, jti=jti)) == [200, 200, 200, 429, 429]
    refused = await request(router.port, HOST, api_key=token(endpoint.id, jti="one"))
    assert refused.json["error"]["code"] == "RATE_LIMIT"
    assert refused.headers["retry-after"] == "1"


async def test_only_the_networks_that_are_named_may_enter_whatever_a_client_claims(
    router: Running, backends: list[Backend]
) -> None:
    access = Access(public=True, source_ranges=("127.0.0.8/29", "192.0.2.0/24"))
    await router.serve(toy(all_of(backends), access=access))
    await router.listening()
    assert (await request(router.port, HOST, source="127.0.0.9")).status == 200
    for claim in ("x_forwarded_for", "x_real_ip", "forwarded", "x_envoy_external_address", "true_client_ip"):
        answer = await request(router.port, HOST, fields={claim: "192.0.2.7"})
        assert (answer.status, answer.json["error"]["code"]) == (403, "FORBIDDEN"), claim


async def test_shares_are_what_they_are_said_to_be(router: Running, backends: list[Backend]) -> None:
    one, two = (
        Revision(number, percent, replicas=replicas(backend.port))
        for number, percent, backend in ((1, 90, backends[0]), (2, 10, backends[1]))
    )
    await router.serve(toy(one, two))
    await router.listening()
    async with Load(router.port, HOST, clients=4) as load:
        await load.sent_more(1500)
    assert load.lost == []
    # Six standard deviations of 1,500 requests.
    assert 0.05 < load.by_name["b"] / sum(load.by_name.values()) < 0.15
