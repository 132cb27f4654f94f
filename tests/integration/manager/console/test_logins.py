"""Logging in and out: by which secrets, for how long, and what ends with a log-in."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from retinue.manager.console.core import limits
from retinue.manager.console.core.limits import MAX_TRIES
from retinue.manager.identity.tokens import CONSOLE_TICKET_PREFIX, TOKEN_PREFIX, new_secret
from retinue.manager.store import retention
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc
from tests.integration.manager.console.page import SESSIONS, ended
from tests.integration.manager.rig import Service, bearer, failure
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from tests.integration.manager.console.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="session")

WATCH = f"{SESSIONS}/WatchSessions"
UNAUTHENTICATED = "16"


async def execute(service: Service, statement: str) -> Any:
    async with service.database.transaction() as tx:
        return await tx.execute(text(statement))


async def ticket(service: Service, token: str) -> str:
    """The secret in a link that a token is good for."""
    async with service.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        made = await stub.CreateConsoleTicket(pb.CreateConsoleTicketRequest(), metadata=bearer(token))
    url = urlsplit(made.url)
    assert (made.origin, url.path, url.query) == (f"{url.scheme}://{url.netloc}/", "/login", "")
    assert url.netloc.startswith("console.")
    left = made.expire_time.ToDatetime(dt.UTC) - dt.datetime.now(dt.UTC)
    assert dt.timedelta(0) < left <= dt.timedelta(seconds=60)
    return url.fragment.removeprefix("ticket=")


async def test_a_log_in_is_a_token_of_its_own(console: Served) -> None:
    token = await console.service.user("ada")
    page = console.page()
    assert await page.status() == UNAUTHENTICATED
    answer = await page.log_in(token=token)
    assert (answer.status, answer.body) == (204, b"")
    cookie = answer.headers["set-cookie"].split("; ")
    assert cookie[0].startswith(f"__Host-retinue-console={TOKEN_PREFIX}")
    assert cookie[0] != f"__Host-retinue-console={token}"
    assert set(cookie[1:]) == {"Path=/", cookie[2], "HttpOnly", "SameSite=Strict", "Secure"}
    assert 43_200 - NEVER < int(cookie[2].removeprefix("Max-Age=")) <= 43_200
    assert await page.status() == "0"
    # The user's own list has it, and whose it is made with.
    async with console.service.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        listed = (await stub.ListTokens(pb.ListTokensRequest(), metadata=bearer(token))).tokens
    assert [one.parent_id for one in listed] == [listed[1].id, ""]
    assert listed[0].description.startswith("console, ")


async def test_what_lets_no_browser_in(console: Served) -> None:
    service = console.service
    token, expired, revoked = [await service.user(name) for name in ("ada", "eve", "bob")]
    await execute(service, "UPDATE token SET expire_time = now() - interval '1 s' WHERE user_name = 'eve'")
    await execute(service, "UPDATE token SET revoke_time = now() WHERE user_name = 'bob'")
    for wrong in (new_secret(TOKEN_PREFIX), expired, revoked, "", "x", token + "x", new_secret("rta_")):
        page = console.page()
        for kind in ("token", "ticket"):
            answer = await page.log_in(**{kind: wrong})
            assert (answer.status, "set-cookie" in answer.headers) == (401, False), (kind, wrong)
            said = json.loads(answer.body)
            assert set(said) == {"code", "message"}
            assert said["code"] == 16
    for body in (b"x", b"[]", b"{}", b"null", b'{"token": 1}', b'{"token": "x", "ticket": "x"}', b'"x"'):
        answer = await console.page().post("/login", body, Content_Type="application/json")
        assert (answer.status, json.loads(answer.body)["code"]) == (400, 3), body


@pytest.mark.attack("slow-console")
async def test_tries_are_counted_by_token_and_by_address(console: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    # The minute does not end while they are made.
    monkeypatch.setattr(limits, "TRIES_SECONDS", 3600.0)
    token, wrong = await console.service.user("ada"), new_secret(TOKEN_PREFIX)
    page = console.page()
    for _ in range(MAX_TRIES):
        assert (await page.log_in(token=wrong)).status == 401
    answer = await page.log_in(token=wrong)
    assert (answer.status, json.loads(answer.body)["code"]) == (429, 8)
    # Others behind the same address have nothing to do with it.
    assert (await page.log_in(token=token)).status == 204
    while (answer := await page.log_in(token=new_secret(TOKEN_PREFIX))).status != 429:
        assert answer.status == 401
    # An address that a client names itself is none.
    forged = await page.post("/login", json.dumps({"token": token}).encode(), X_Forwarded_For="192.0.2.1")
    assert forged.status == 429
    assert (await console.page().log_in(token=token)).status == 204


@pytest.mark.attack("tickets-of-the-console")
async def test_a_link_is_good_once_and_for_a_minute(console: Served) -> None:
    service = console.service
    token = await service.user("ada")
    secret = await ticket(service, token)
    assert (await console.page().log_in(token=secret)).status == 401
    page = console.page()
    assert (await page.log_in(ticket=secret)).status == 204
    assert await page.status() == "0"
    assert (await console.page().log_in(ticket=secret)).status == 401
    # Of many at once, one is let in.
    secret = await ticket(service, token)
    answers = await asyncio.gather(*(console.page().log_in(ticket=secret) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [204, 401, 401, 401]
    late, revoked = await ticket(service, token), await ticket(service, token)
    kept = (await execute(service, "SELECT hash FROM console_ticket")).scalars().all()
    assert all(late.encode() not in bytes(one) and len(one) == 32 for one in kept)
    await execute(service, "UPDATE console_ticket SET expire_time = now() - interval '1 s'")
    assert (await console.page().log_in(ticket=late)).status == 401
    async with service.database.transaction() as tx:
        await retention.forget(tx)
    assert (await execute(service, "SELECT count(*) FROM console_ticket")).scalar_one() == 0
    revoked = await ticket(service, token)
    await execute(service, "UPDATE token SET revoke_time = now()")
    assert (await console.page().log_in(ticket=revoked)).status == 401
    assert (await console.page().log_in(ticket=new_secret(CONSOLE_TICKET_PREFIX))).status == 401


async def test_without_a_console_there_are_no_links(service: Service) -> None:
    token = await service.user("ada")
    async with service.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        refused = await failure(stub.CreateConsoleTicket(pb.CreateConsoleTicketRequest(), metadata=bearer(token)))
    assert (refused.code.name, refused.reason) == ("FAILED_PRECONDITION", "CONSOLE_OFF")


async def test_two_browsers_at_once(console: Served) -> None:
    token = await console.service.user("ada")
    pages = [console.page() for _ in range(4)]
    answers = await asyncio.gather(*(page.log_in(token=token) for page in pages))
    assert [answer.status for answer in answers] == [204] * 4
    assert len({page.cookie for page in pages}) == 4
    async with pages[0].stream(WATCH) as first, pages[1].stream(WATCH) as second:
        for stream in (first, second):
            await stream.send_bytes(b"")
        assert (await pages[0].post("/logout", b"")).status == 204
        assert (await ended(first))["code"] == 16
        assert await pages[0].status() == UNAUTHENTICATED
        assert [await page.status() for page in pages[1:]] == ["0"] * 3
        assert not second.closed


async def test_logging_out_takes_the_cookie_back(console: Served) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    answer = await page.post("/logout", b"")
    given = "__Host-retinue-console=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict; Secure"
    assert (answer.status, answer.headers["set-cookie"]) == (204, given)
    # Once more, and without any cookie, it is the same.
    for _ in range(2):
        answer = await page.post("/logout", b"")
        assert (answer.status, answer.headers["set-cookie"]) == (204, given)
        page.cookie = ""


@pytest.mark.parametrize(
    "ends",
    [
        "UPDATE token SET revoke_time = now() WHERE parent_id IS NOT NULL",
        "UPDATE token SET expire_time = now() WHERE parent_id IS NOT NULL",
        "DELETE FROM user_account WHERE name = 'ada'",
    ],
)
async def test_streams_end_with_their_log_in(console: Served, ends: str) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    async with page.stream(WATCH) as stream:
        await stream.send_bytes(b"")
        await stream.receive()
        await execute(console.service, ends)
        assert (await ended(stream))["code"] == 16
    async with page.stream(WATCH) as stream:
        end = await ended(stream)
    assert (end["code"], bool(end["details"])) == (16, True)


async def test_a_log_in_ends_with_the_token_that_it_was_made_with(console: Served) -> None:
    service = console.service
    token = await service.user("ada")
    page = await console.logged_in(token)
    async with service.channel() as channel, page.stream(WATCH) as stream:
        await stream.send_bytes(b"")
        await stream.receive()
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        listed = (await stub.ListTokens(pb.ListTokensRequest(), metadata=bearer(token))).tokens
        [parent] = [one.id for one in listed if not one.parent_id]
        await stub.RevokeToken(pb.RevokeTokenRequest(token_id=parent), metadata=bearer(token))
        assert (await ended(stream))["code"] == 16
    assert await page.status() == UNAUTHENTICATED


async def test_a_log_in_lasts_no_longer_than_its_token(console: Served) -> None:
    token = await console.service.user("ada")
    await execute(console.service, "UPDATE token SET expire_time = now() + interval '1 hour'")
    answer = await console.page().log_in(token=token)
    seconds = next(part for part in answer.headers["set-cookie"].split("; ") if part.startswith("Max-Age="))
    assert 0 < int(seconds.removeprefix("Max-Age=")) <= 3600
