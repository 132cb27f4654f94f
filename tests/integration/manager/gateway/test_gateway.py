"""The gateway over TLS, without agents: what browsers are given, when it ends,
and what is said when something is out of reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc
from sqlalchemy import text

from retinue.devtools.cluster import free_ports
from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.daemon import agent_dialer
from retinue.manager.gateway import access_cache, serving
from retinue.manager.gateway.access_cache import AccessCache
from retinue.manager.gateway.core import resources
from retinue.manager.gateway.core.rules import ACCESS_PREFIX, OPEN_PATH, TICKET_PREFIX, Target
from retinue.manager.gateway.serving import Gateway
from retinue.manager.gateway.settings import GatewaySettings
from retinue.manager.identity.authority import Authority
from retinue.manager.identity.tokens import hash_secret, new_secret
from retinue.manager.store import retention, tables
from retinue.manager.store.access import port_access
from retinue.manager.store.accounts import accounts
from retinue.manager.store.postgres.database import Database, StoreConflict, StoreUnavailable, Transaction
from retinue.manager.v1 import kernel_service_pb2, kernel_service_pb2_grpc, session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.rig import Service, bearer, failure, now
from tests.integration.sessions.web import browser
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Collection

    import aiohttp

    from tests.support.databases import Postgres

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOMAIN = "apps.example.org"
PORT = 8080


@dataclass(slots=True)
class Rig:
    """A gateway, and a session whose main kernel is said to run on an unreachable agent."""

    service: Service
    gateway: Gateway
    target: Target
    token: str
    token_id: uuid.UUID

    @property
    def origin(self) -> str:
        return self.gateway.address.origin(self.target)

    async def execute(self, statement: str) -> None:
        async with self.service.database.transaction() as tx:
            await tx.execute(text(statement), {"session": self.target.session_id})

    async def ticket(self, seconds: int = 3600) -> str:
        """Where a ticket is exchanged that is good for so long."""
        secret = new_secret(TICKET_PREFIX)
        async with self.service.database.transaction() as tx:
            await port_access.create_ticket(
                tx,
                hash_secret(secret),
                session_id=self.target.session_id,
                port=self.target.port,
                user="ada",
                token_id=self.token_id,
                path="/",
                seconds=seconds,
            )
        return f"{self.origin}{OPEN_PATH}?ticket={secret}"


@pytest_asyncio.fixture(loop_scope="session")
async def rig(service: Service, tmp_path: Path) -> AsyncIterator[Rig]:
    token = await service.user("ada")
    async with service.channel() as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        kernels = kernel_service_pb2_grpc.KernelServiceStub(channel)
        request = pb.CreateSessionRequest()
        request.spec.type, request.spec.kernel.slots["cpu"] = session_pb2.SESSION_TYPE_INTERACTIVE, "1"
        made = await stub.CreateSession(request, metadata=bearer(token))
        session_id = uuid.UUID(made.session.id)
        # Without a gateway there are no links.
        asked = kernel_service_pb2.CreatePortTicketRequest(session=made.session.id, port="8080")
        assert (await failure(kernels.CreatePortTicket(asked, metadata=bearer(token)))).reason == "GATEWAY_OFF"
    async with service.database.transaction() as tx:
        token_id = (await tx.execute(text("SELECT id FROM token WHERE user_name = 'ada'"))).scalar_one()
    gateway = Gateway(GatewaySettings("127.0.0.1:0", DOMAIN), service.authority)
    forwarder = Forwarder(agent_dialer(service.authority))
    group = asyncio.TaskGroup()
    denied = service.auditor.deny
    async with group, gateway.serving(group, service.database, service.tail, forwarder, tmp_path, denied=denied):
        yield Rig(service, gateway, Target(session_id, PORT), token, token_id)


async def status(web: aiohttp.ClientSession, url: str) -> int:
    async with web.get(url) as answer:
        return answer.status


@pytest.mark.attack("acts-without-a-trace")
async def test_browsers_that_get_no_access_are_in_the_audit(rig: Rig) -> None:
    async with browser(trusting=rig.service.authority.certificate) as web:
        assert await status(web, rig.origin) == 401
        cookie = {"Cookie": f"__Host-retinue={new_secret(ACCESS_PREFIX)}"}
        async with web.get(rig.origin, headers=cookie) as answer:
            assert answer.status == 401
        assert await status(web, f"{rig.origin}{OPEN_PATH}?ticket={new_secret(TICKET_PREFIX)}") == 403
        assert await status(web, f"{rig.origin}{OPEN_PATH}?ticket=x") == 403
        assert await status(web, await rig.ticket()) == 503
        async with web.get(rig.origin, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}) as answer:
            assert answer.status == 403
    await rig.service.auditor.write()
    async with rig.service.database.transaction() as tx:
        found = await tx.execute(text("SELECT method, reason, address, sum(count) FROM audit_record GROUP BY 1, 2, 3"))
        counted = {tuple(row) for row in found}
    assert counted == {
        ("port of a session", "CREDENTIALS_MISSING", "127.0.0.1", 1),
        ("port of a session", "TOKEN_INVALID", "127.0.0.1", 1),
        ("port of a session", "METHOD_DENIED", "127.0.0.1", 1),
        ("ticket of a port", "TOKEN_INVALID", "127.0.0.1", 2),
    }


async def test_what_a_browser_is_given_and_until_when(rig: Rig) -> None:
    authority = rig.service.authority.certificate
    async with browser(trusting=authority) as web, browser(trusting=authority) as other:
        assert rig.origin.startswith("https://")
        assert await status(web, rig.origin) == 401
        assert await status(web, await rig.ticket(seconds=-1)) == 403
        # The session waits, and the browser is let in all the same.
        async with web.get(await rig.ticket()) as answer:
            cookie = answer.history[0].headers["Set-Cookie"]
            assert answer.status == 503
            assert "does not run" in await answer.text()
        assert cookie.startswith("__Host-retinue=rta_")
        assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
        assert "domain" not in cookie.lower()
        await status(other, await rig.ticket())

        session_id = rig.target.session_id
        async with rig.service.database.transaction() as tx:
            tx.add(tables.Agent(id="gone", resource_group="default", address="127.0.0.1:1", state="ALIVE"))
            attempt: dict[str, Any] = {
                "kernel_id": session_id,
                "epoch": 1,
                "session_id": session_id,
                "agent_id": "gone",
                "term": 1,
            }
            tx.add(tables.Attempt(**attempt, goal="RUNNING", observed="RUNNING"))
        await rig.execute("UPDATE session SET state = 'RUNNING' WHERE id = :session")
        await rig.execute("UPDATE kernel SET state = 'RUNNING', agent_id = 'gone', epoch = 1 WHERE id = :session")
        await eventually(lambda: page(web, rig.origin), lambda shown: "node cannot be reached" in shown)

        # What has expired is good for nothing, whatever the browser thinks; the other's is as good as before.
        await rig.execute("""
            UPDATE port_access SET expire_time = now() - interval '1 s' WHERE hash IN (SELECT hash FROM port_access ORDER BY expire_time LIMIT 1)
        """)
        await eventually(lambda: status(web, rig.origin), lambda code: code == 401)
        assert await status(other, rig.origin) == 503

        await rig.execute("UPDATE session SET state = 'TERMINATED' WHERE id = :session")
        await eventually(lambda: status(other, rig.origin), lambda code: code in (401, 403))
        async with rig.service.database.transaction() as tx:
            await retention.forget(tx)
            # The expired one; what was exchanged is gone at once.
            assert (await tx.execute(text("SELECT count(*) FROM port_ticket"))).scalar_one() == 0
            assert (await tx.execute(text("SELECT count(*) FROM port_access"))).scalar_one() == 0


async def page(web: aiohttp.ClientSession, url: str) -> str:
    async with web.get(url) as answer:
        return await answer.text()


async def test_tickets_are_used_at_the_same_time(rig: Rig) -> None:
    tickets = [await rig.ticket() for _ in range(8)]

    async def given(ticket: str) -> int:
        async with (
            browser(trusting=rig.service.authority.certificate) as web,
            web.get(ticket, allow_redirects=False) as answer,
        ):
            return answer.status

    # Each twice: one of the two gets access, and no other is given for it.
    statuses = await asyncio.gather(*(given(ticket) for ticket in tickets * 2))
    assert sorted(statuses) == [303] * 8 + [403] * 8


async def test_who_is_no_administrator_any_more_is_let_in_no_more(rig: Rig) -> None:
    await rig.execute("UPDATE session SET owner = 'someone' WHERE id = :session")
    await rig.execute("UPDATE user_account SET role = 'ADMIN' WHERE name = 'ada'")
    async with browser(trusting=rig.service.authority.certificate) as web:
        await status(web, await rig.ticket())
        # It is let in; the session waits.
        assert await status(web, rig.origin) == 503
        await rig.execute("UPDATE user_account SET role = 'USER' WHERE name = 'ada'")
        await eventually(lambda: status(web, rig.origin), lambda code: code == 401)


async def test_what_one_replica_gives_is_good_at_another(rig: Rig, tmp_path: Path) -> None:
    service, authority = rig.service, rig.service.authority
    # What stands in front of both has the address that browsers see.
    port = free_ports()[0]
    second = Gateway(GatewaySettings(f"127.0.0.1:{port}", DOMAIN, number=rig.gateway.address.number), authority)
    forwarder = Forwarder(agent_dialer(authority))
    group = asyncio.TaskGroup()
    async with group, second.serving(group, service.database, service.tail, forwarder, tmp_path):
        trusting = authority.certificate
        async with browser(trusting=trusting) as here, browser(trusting=trusting, at=port) as there:
            ticket = await rig.ticket()
            async with here.get(ticket) as answer:
                cookie = {"Cookie": answer.history[0].headers["Set-Cookie"].partition(";")[0]}
            assert await status(there, ticket) == 403
            assert await status(there, rig.origin) == 401
            async with there.get(rig.origin, headers=cookie) as answer:
                assert "does not run" in await answer.text()
            await status(there, await rig.ticket())
            # What a token is revoked by, and where, does not matter.
            async with service.database.transaction() as tx:
                await accounts.revoke_token(tx, rig.token_id)
            await eventually(lambda: status(here, rig.origin), lambda code: code == 401)
            await eventually(lambda: status(there, rig.origin), lambda code: code == 401)


async def shown_certificate(port: int) -> bytes:
    """Returns the gateway's certificate in DER; the client does not verify it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=f"x.{DOMAIN}")
    try:
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown
    finally:
        writer.close()


async def test_a_renewed_certificate_is_taken_up(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_CERTIFICATE_SECONDS", 0.05)
    authority, chain, key = rig.service.authority, tmp_path / "chain.pem", tmp_path / "key.pem"
    first, second = authority.issue_gateway(DOMAIN), authority.issue_gateway(DOMAIN)
    chain.write_bytes(first.certificate)
    key.write_bytes(first.key)
    gateway = Gateway(GatewaySettings("127.0.0.1:0", DOMAIN, certificate=(chain, key)), authority)
    port = gateway.address.number
    forwarder = Forwarder(agent_dialer(authority))
    group = asyncio.TaskGroup()
    async with group, gateway.serving(group, rig.service.database, rig.service.tail, forwarder, tmp_path):
        assert await shown_certificate(port) == ssl.PEM_cert_to_DER_cert(first.certificate.decode())
        # Half of a renewal is none: the certificate is there, and its key is not yet.
        chain.write_bytes(second.certificate)
        await eventually(lambda: "is not reloaded" in caplog.text)
        assert await shown_certificate(port) == ssl.PEM_cert_to_DER_cert(first.certificate.decode())
        key.write_bytes(second.key)
        renewed = ssl.PEM_cert_to_DER_cert(second.certificate.decode())
        await eventually(lambda: shown_certificate(port), lambda shown: shown == renewed)


def socket_names() -> set[str]:
    """Returns the abstract names of this process's listeners through which no caller has access yet."""
    own = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(link.readlink()))
    listed = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {
        fields[7].removeprefix("@")
        for fields in listed
        if len(fields) > 7 and fields[7].startswith("@retinue-gateway-") and f"socket:[{fields[6]}]" in own
    }


async def test_no_other_process_of_the_machine_gets_what_the_engine_gets(rig: Rig) -> None:
    # Every user can read the names of such sockets; behind one of these is the certificate's key.
    names = socket_names()
    assert len(names) == 3
    for name in names:
        async with grpc.aio.insecure_channel(f"unix-abstract:{name}") as channel:
            for metadata in ((), ((resources.KEY, "0" * 64),)):
                ads = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
                calls: list[Awaitable[object]] = [
                    ads.DeltaAggregatedResources(iter(()), metadata=metadata).read(),
                    external_auth_pb2_grpc.AuthorizationStub(channel).Check(
                        external_auth_pb2.CheckRequest(), metadata=metadata
                    ),
                ]
                for call in calls:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def privileged(authority: Authority) -> Gateway:
    """A gateway at a port below 1,024, the first that nothing else has."""
    for number in range(1023, 600, -1):
        with contextlib.suppress(OSError):
            return Gateway(GatewaySettings(f"127.0.0.1:{number}", DOMAIN), authority)
    raise AssertionError("none is free")


async def test_a_port_below_1024_is_served_with_that_one_right(rig: Rig, tmp_path: Path) -> None:
    gateway = privileged(rig.service.authority)
    forwarder = Forwarder(agent_dialer(rig.service.authority))
    group = asyncio.TaskGroup()
    async with group, gateway.serving(group, rig.service.database, rig.service.tail, forwarder, tmp_path):
        await shown_certificate(gateway.address.number)
        rights = {int(line.split()[1], 16) for pid in children() for line in status_of(pid) if "CapEff" in line}
        # That of the rig's own gateway, and of this one: CAP_NET_BIND_SERVICE.
        assert {0, 1 << 10} <= rights


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def status_of(pid: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text().splitlines()
    return []


@contextlib.asynccontextmanager
async def out_of_reach(postgres: Postgres, url: str) -> AsyncIterator[None]:
    """Keeps every client from the database while the block lasts."""
    name = url.partition("?")[0].rpartition("/")[2]
    await postgres.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
    try:
        await postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")  # noqa: S608
        yield
    finally:
        await postgres.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")


async def test_while_the_database_is_out_of_reach_who_was_let_in_stays_in(
    rig: Rig, postgres: Postgres, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was read is hardly believed without another look.
    monkeypatch.setattr(access_cache, "POLL_SECONDS", 0.1)
    read, failed = AccessCache._read, 0  # noqa: SLF001  # it is counted

    async def counting(cache: AccessCache, keys: Collection[bytes]) -> None:
        nonlocal failed
        try:
            await read(cache, keys)
        except StoreUnavailable:
            failed += 1
            raise

    monkeypatch.setattr(AccessCache, "_read", counting)
    async with browser(trusting=rig.service.authority.certificate) as web:
        await status(web, await rig.ticket())
        unused = await rig.ticket()
        async with out_of_reach(postgres, database_url):
            for looks in (1, 2, 3):
                await eventually(lambda: failed, looks.__le__)
                assert "does not run" in await page(web, rig.origin)
            # A ticket is not used up by that.
            assert "database" in await page(web, unused)
        shown = await eventually(lambda: page(web, unused), lambda shown: "database" not in shown)
        assert "does not run" in shown


async def test_what_the_database_refuses_once_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, transaction, failures = port_access.exchange, Database.transaction, ["before", "commit"]

    async def exchange_or_conflict(*args: Any, **options: Any) -> port_access.RedeemedGrant | None:
        if failures[:1] == ["before"]:
            del failures[0]
            raise StoreConflict("a deadlock")
        return await exchange(*args, **options)

    @contextlib.asynccontextmanager
    async def lost_after_commit(database: Database) -> AsyncIterator[Transaction]:
        async with transaction(database) as tx:
            yield tx
            used = (await tx.execute(text("SELECT count(*) FROM port_access"))).scalar_one()
        if used and failures == ["commit"]:
            failures.clear()
            raise StoreUnavailable("the answer to the commit was lost")

    monkeypatch.setattr(port_access, "exchange", exchange_or_conflict)
    monkeypatch.setattr(Database, "transaction", lost_after_commit)
    async with browser(trusting=rig.service.authority.certificate) as web, web.get(await rig.ticket()) as answer:
        assert [one.status for one in answer.history] == [303]
        assert "does not run" in await answer.text()
    assert not failures


async def test_what_cannot_be(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path, now)
    with pytest.raises(OSError, match="at a loopback address only"):
        Gateway(GatewaySettings("0.0.0.0:0"), authority)
    with pytest.raises(OSError, match="is not HOST:PORT"):
        Gateway(GatewaySettings("nowhere"), authority)
    (tmp_path / "a").write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        Gateway(GatewaySettings("127.0.0.1:0", DOMAIN, certificate=(tmp_path / "a", tmp_path / "a")), authority)
    first = Gateway(GatewaySettings("127.0.0.1:0"), authority)
    with pytest.raises(OSError, match="cannot listen on"):
        Gateway(GatewaySettings(f"127.0.0.1:{first.address.number}"), authority)
    first.close()
