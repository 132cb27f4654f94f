"""Endpoints served by a real engine: nothing lost while replicas come and go, held requests, answers, limits,
restarts.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from retinue.router import serving
from retinue.router.core.table import Access, Cors, Revision, Routing, Table
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Drip, Load, is_whole, read_answer, request
from tests.integration.router.running import HOST, Running, replicas, running, token, toy, until_connected
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path


async def test_requests_are_held_until_a_replica_is_ready_in_order_and_none_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        asleep = toy(Revision(1, 100))
        await router.serve(asleep)
        await router.listening()
        calls = [asyncio.create_task(request(router.port, HOST, method="POST", body=b"x" * 50_000)) for _ in range(20)]
        await eventually(lambda: router.serving.gate.held() == {asleep.id: 20})

        await router.serve(replace(asleep, revisions=(Revision(1, 100, replicas=replicas(backend.port)),)))
        answers = await asyncio.gather(*calls)

        assert [answer.status for answer in answers] == [200] * 20
        assert {answer.json["size"] for answer in answers} == {50_000}
        await eventually(lambda: not router.serving.gate.held())
        assert (await request(router.port, HOST)).status == 200


async def test_a_held_request_finds_the_replica_of_another_revision_than_it_chose(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("new") as backend:
        asleep = toy(Revision(1, 100))
        await router.serve(asleep)
        await router.listening()
        call = asyncio.create_task(request(router.port, HOST))
        await eventually(lambda: router.serving.gate.held() == {asleep.id: 1})

        await router.serve(replace(asleep, revisions=(Revision(2, 0),)))
        await router.serve(replace(asleep, revisions=(Revision(2, 100, replicas=replicas(backend.port)),)))

        assert (await call).json["name"] == "new"


async def test_what_is_held_for_too_long_or_beyond_the_limit_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as router:
        full = toy(Revision(1, 100), routing=Routing(hold_timeout=600.0, hold_limit=1))
        hasty = toy(Revision(1, 100), hosts=("hasty.test",), routing=Routing(hold_timeout=0.5))
        await router.serve(full, hasty)
        await router.listening()
        first = asyncio.create_task(request(router.port, HOST))
        await eventually(lambda: router.serving.gate.held() == {full.id: 1})

        for host in (HOST, "hasty.test"):
            answer = await request(router.port, host)
            assert answer.status == 503
            assert answer.headers["retry-after"] == "10"
            error = answer.json["error"]
            assert (error["code"], error["endpoint"]) == ("STARTING", "toy")
            assert error["request_id"] == answer.headers["x-request-id"]
        first.cancel()
        await eventually(lambda: not router.serving.gate.held())


async def test_nothing_is_lost_while_replicas_come_and_go_and_revisions_take_over(tmp_path: Path) -> None:
    async with running(tmp_path) as router, AsyncExitStack() as stack:
        one, two, three = [await stack.enter_async_context(Backend(name)) for name in ("one", "two", "three")]
        endpoint = toy(Revision(1, 100, replicas=replicas(one.port)))
        await router.serve(endpoint)
        await router.listening()
        async with Load(router.port, HOST) as load:
            for step in range(25):
                hosts = replicas(one.port, two.port) if step % 2 else replicas(two.port)
                await router.serve(replace(endpoint, revisions=(Revision(1, 100, replicas=hosts),)))
                await load.sent_more(10)
                old, new = Revision(1, 50, replicas=hosts), Revision(2, 50, replicas=replicas(three.port))
                await router.serve(replace(endpoint, revisions=(old, new)))
                await load.sent_more(10)
                await router.serve(replace(endpoint, revisions=(replace(new, percent=100),)))
                await load.sent_more(10)
        assert load.lost == []
        assert load.sent >= 750
        assert set(load.by_name) == {"one", "two", "three"}


async def test_forty_times_to_zero_and_back_loses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        awake = toy(Revision(1, 100, replicas=replicas(backend.port)))
        await router.serve(awake)
        await router.listening()
        async with Load(router.port, HOST, clients=6) as load:
            for _ in range(40):
                await load.sent_more(6)
                await router.serve(
                    replace(awake, revisions=(Revision(1, 100, replicas=replicas(backend.port, draining=True)),))
                )
                await router.serve(replace(awake, revisions=(Revision(1, 100),)))
                await eventually(router.serving.gate.held)
                await router.serve(awake)
        assert load.lost == []


@pytest.mark.attack("tokens-of-endpoints")
async def test_tokens_are_checked_and_stripped_and_a_revoked_one_is_refused_once_applied(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        endpoint = toy(Revision(1, 100, replicas=replicas(backend.port)), access=Access())
        other = toy(Revision(1, 100, replicas=replicas(backend.port)), access=Access(), hosts=("other.test",))
        await router.serve(endpoint, other)
        await router.listening()
        good = token(endpoint.id)

        async def status(value: str) -> int:
            return (await request(router.port, HOST, authorization=f"Bearer {value}")).status

        missing = await request(router.port, HOST)
        assert (missing.status, missing.json["error"]["code"]) == (401, "NO_TOKEN")
        assert "www-authenticate" in missing.headers
        foreign = await request(router.port, HOST, authorization=f"Bearer {token(other.id)}")
        assert (foreign.status, foreign.json["error"]["code"]) == (403, "FORBIDDEN")
        assert await status(token(endpoint.id, lifetime=-60)) == 401
        assert await status(good[:-6] + "AAAAAA") == 401
        assert backend.requests == 0

        passed = await request(router.port, HOST, authorization=f"Bearer {good}", api_key="another")
        assert passed.status in {200, 401}
        answer = await request(router.port, HOST, authorization=f"Bearer {good}")
        assert answer.status == 200
        assert not {"authorization", "api-key"} & answer.json["headers"].keys()
        answer = await request(router.port, HOST, api_key=good)
        assert answer.status == 200
        assert not {"authorization", "api-key"} & answer.json["headers"].keys()

        await router.serve(replace(endpoint, access=Access(revoked=("t1",))))
        assert await status(good) == 403
        assert await status(token(endpoint.id, jti="t2")) == 200
        assert good not in (tmp_path / "access.log").read_text()


async def test_answers_say_what_is_the_matter(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        only = Revision(1, 100, replicas=replicas(backend.port))
        endpoint = toy(only)
        hasty = toy(only, hosts=("hasty.test",), routing=Routing(idle_timeout=0.5))
        limited = toy(only, hosts=("rate.test",), access=Access(public=True, rate_requests=1, rate_period=60))
        inside = toy(only, hosts=("inside.test",), access=Access(public=True, source_ranges=("192.0.2.0/24",)))
        gone = toy(hosts=("gone.test",), deleted=True)
        await router.serve(endpoint, hasty, limited, inside, gone)
        await router.listening()

        async def answer(host: str, path: str = "/") -> tuple[int, str]:
            found = await request(router.port, host, path)
            return found.status, found.json["error"]["code"] if found.status >= 400 else ""

        assert await answer(HOST, "/break") == (502, "REPLICA_BROKE")
        assert await answer("hasty.test", "/held") == (504, "TIMEOUT")
        assert await answer("none.test") == (404, "NO_ENDPOINT")
        assert await answer("gone.test") == (410, "NO_ENDPOINT")
        assert await answer("inside.test") == (403, "FORBIDDEN")
        assert await answer("rate.test") == (200, "")
        assert await answer("rate.test") == (429, "RATE_LIMIT")
        # Whatever a replica answers by itself passes as it is.
        own = await request(router.port, HOST, "/status?503")
        assert (own.status, own.json["name"]) == (503, "a")


UPGRADE = f"GET /ws HTTP/1.1\r\nhost: {HOST}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n".encode()


async def test_streams_and_websockets_continue_whatever_becomes_of_the_route(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        endpoint = toy(Revision(1, 100, replicas=replicas(backend.port)))
        await router.serve(endpoint)
        await router.listening()
        stream = asyncio.create_task(request(router.port, HOST, "/ticking"))
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(UPGRADE)
        assert (await read_answer(reader)).status == 101
        await eventually(lambda: "/ticking" in backend.paths)
        for index in range(5):
            # The route moves and comes back meanwhile.
            percent = 50 if index % 2 else 100
            rest = (Revision(2, 50, replicas=replicas(backend.port)),) if percent == 50 else ()
            await router.serve(
                replace(endpoint, revisions=(Revision(1, percent, replicas=replicas(backend.port)), *rest))
            )
            writer.write(f"frame {index}".encode())
            assert await reader.readexactly(7) == f"frame {index}".encode()
        writer.close()
        backend.resume.set()
        assert is_whole((await stream).body)


async def test_streams_and_websockets_are_cut_by_silence_only(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        only = Revision(1, 100, replicas=replicas(backend.port))
        await router.serve(toy(only, routing=Routing(idle_timeout=3.0)))
        await router.listening()
        stream = asyncio.create_task(request(router.port, HOST, "/ticking"))
        continuing = Drip(router.port, UPGRADE, b"frame", b"last", answered=b"last")
        await eventually(lambda: continuing.pieces and "/ticking" in backend.paths)
        # One that came later and is silent is cut before they end.
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(UPGRADE)
        assert (await read_answer(reader)).status == 101
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert (await continuing.finished()).endswith(b"\r\n\r\n" + b"frame" * continuing.pieces + b"last")
        backend.resume.set()
        assert is_whole((await stream).body)


async def test_a_limit_is_strict_and_its_queue_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a", delay=0.05) as one, Backend("b", delay=0.05) as two:
        limited = Revision(1, 100, max_concurrency=2, queue=100, replicas=replicas(one.port, two.port))
        endpoint = toy(limited)
        await router.serve(endpoint)
        await router.listening()
        async with Load(router.port, HOST, clients=16) as load:
            await load.sent_more(150)
        assert load.lost == []
        assert (one.most, two.most) == (2, 2)

        await router.serve(replace(endpoint, revisions=(replace(limited, queue=1),)))
        calls = [asyncio.create_task(request(router.port, HOST, "/held")) for _ in range(16)]
        await eventually(lambda: any(call.done() for call in calls))
        one.resume.set()
        two.resume.set()
        answers = await asyncio.gather(*calls)
        refused = [answer for answer in answers if answer.status == 503]
        assert refused
        assert {answer.json["error"]["code"] for answer in refused} == {"OVERLOADED"}
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}


async def test_a_refused_endpoint_stays_as_it_was_and_others_follow(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        only = Revision(1, 100, replicas=replicas(backend.port))
        endpoint, other = toy(only), toy(only, hosts=("other.test",))
        await router.serve(endpoint, other)
        await router.listening()
        # The engine wants each host name once.
        await router.serve(replace(other, hosts=(HOST, "more.test")), toy(only, hosts=("third.test",)))

        assert list(router.serving.refusals) == [other.id]
        assert [(await request(router.port, host)).status for host in (HOST, "other.test", "third.test")] == [200] * 3

        await router.serve(replace(other, hosts=("more.test",)))
        assert router.serving.refusals == {}
        assert (await request(router.port, "more.test")).status == 200


async def test_cors_is_answered_where_it_is_set_only(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        only = Revision(1, 100, replicas=replicas(backend.port))
        cors = Routing(cors=Cors(("https://page.test",), ("GET", "POST")))
        await router.serve(toy(only, routing=cors, access=Access()), toy(only, hosts=("other.test",)))
        await router.listening()

        async def preflight(host: str, origin: str) -> str | None:
            answer = await request(
                router.port, host, method="OPTIONS", origin=origin, access_control_request_method="POST"
            )
            return answer.headers.get("access-control-allow-origin")

        assert await preflight(HOST, "https://page.test") == "https://page.test"
        assert await preflight(HOST, "https://evil.test") is None
        assert await preflight("other.test", "https://page.test") is None


def runs_another(router: Running, former: int) -> bool:
    return router.serving.engine.pid not in {None, former}


async def test_an_engine_that_is_killed_comes_back_with_its_table(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
        await router.listening()
        for _ in range(2):
            former = router.serving.engine.pid
            assert former is not None
            os.kill(former, signal.SIGKILL)
            await eventually(partial(runs_another, router, former))
            await until_connected(router.port)
            assert (await request(router.port, HOST)).status == 200


async def test_a_killed_replica_fails_what_is_on_it_and_nothing_after(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a", delay=0.05) as one, Backend("b", delay=0.05) as two:
        await router.serve(toy(Revision(1, 100, replicas=replicas(one.port, two.port))))
        await router.listening()
        async with Load(router.port, HOST, clients=8) as load:
            await load.sent_more(30)
            await one.stop()
            await load.sent_more(60)
            failed = len(load.lost)
            await load.sent_more(100)
        # A request may have reached the replica's socket without the replica having read it,
        # so count those under way by client.
        assert failed <= load.clients
        assert len(load.lost) == failed
        assert load.by_name["b"] > 100


async def test_the_access_log_has_no_query(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
        await router.listening()
        await request(router.port, HOST, "/?secret=1")
        await router.serving.engine.admin.post("/reopen_logs")
        await eventually((tmp_path / "access.log").read_text)
        entry = json.loads((tmp_path / "access.log").read_text().splitlines()[0])
        assert (entry["path"], entry["endpoint"], entry["status"]) == ("/", "p/toy", 200)


async def test_a_table_that_cannot_be_applied_is_applied_again_and_seen_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing() -> float | None:
        return REGISTRY.get_sample_value("retinue_failing", {"part": "table"})

    monkeypatch.setattr(serving, "AGAIN_SECONDS", 0.01)
    tries, shown, apply = 0, list[float | None](), serving.Serving._apply  # noqa: SLF001

    async def fail_at_first(each: serving.Serving, table: Table) -> None:
        nonlocal tries
        tries += 1
        shown.append(failing())
        if tries <= 5:
            raise ValueError(f"a mistake at {tries}")
        await apply(each, table)

    async with running(tmp_path) as router:
        monkeypatch.setattr(serving.Serving, "_apply", fail_at_first)
        # No other table comes.
        await router.serve(toy())
        await eventually(lambda: failing() == 0)
    assert shown[1:6] == [1] * 5
    said = [record.getMessage() for record in caplog.records if "cannot be applied" in record.getMessage()]
    assert said[0] == "the table cannot be applied, and is tried again: 1: ValueError('a mistake at 1')"
    assert [text for text in said[1:] if "mistake" in text] == []
