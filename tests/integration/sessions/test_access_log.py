"""Who was let into a kernel stands in the session's journal: who, when, where and how."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import CallError, NotFound
from retinue.manager.v1 import session_pb2
from tests.integration.sessions.inside import ran
from tests.integration.sessions.journal import accesses
from tests.integration.sessions.web import browser
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVER = """
import socket
listening = socket.create_server(("0.0.0.0", 7001))
while True:
    listening.accept()[0].close()
"""


async def test_who_enters_is_in_the_journal(client: Client, cluster: Cluster, tmp_path: Path) -> None:
    owner = await client.users.create("entering", projects={"default": "member"})
    stranger = await client.users.create("outside", projects={"default": "admin"})
    secrets = [(await client.tokens.create(user=user.name)).secret for user in (owner, stranger)]
    try:
        async with cluster.client(secrets[0]) as own, cluster.client(secrets[1]) as other:
            session = await own.sessions.create(
                type="interactive",
                command=["python3", "-c", SERVER],
                cluster_size=2,
                slots={"cpu": "0.2", "mem": "128m"},
                termination_grace=0,
                ports=[("web", "http", 7001)],
                apps=[session_pb2.AppDefinition(name="web", command=["true"])],
            )
            await session.wait("RUNNING", timeout=NEVER)
            try:
                for hostname in ("sub1", "main1", "main1"):
                    await ran(session, "true", hostname=hostname)
                # As administrators may; those of a project may not, and are not there to be kept.
                await ran(await client.sessions.get(session.id), "true", hostname="sub1")
                with pytest.raises(NotFound):
                    await ran(await other.sessions.get(session.id), "true", hostname="main1")
                # What came of it does not count.
                with pytest.raises(CallError):
                    async with session.code("no-such-language") as code:
                        await code.execute("1")
                # These come by the hundred, and stand for ten minutes each.
                for _ in range(3):
                    with contextlib.suppress(CallError):
                        async with session.open_port("web") as connection:
                            assert [data async for data in connection] == []
                ticket = await session.create_port_ticket("web")
                async with browser() as web, web.get(ticket.url, allow_redirects=False) as answer:
                    assert answer.status == 303
                (tmp_path / "x").write_text("x")
                for _ in range(2):
                    await session.files("sub1").upload(tmp_path / "x", "x")
                    await session.files("sub1").download("x", tmp_path / "y")
                with contextlib.suppress(CallError):
                    await session.start_app("web")
                for _ in range(2):
                    await session.stop_app("web")
                administrator = (await client.users.caller()).name
                assert await accesses(client, session) == [
                    ("ATTACH", "entering", "sub1", 0),
                    ("ATTACH", "entering", "main1", 0),
                    ("ATTACH", "entering", "main1", 0),
                    ("ATTACH", administrator, "sub1", 0),
                    ("CODE", "entering", "main1", 0),
                    ("PORT", "entering", "main1", 7001),
                    ("HTTP", "entering", "main1", 7001),
                    ("UPLOAD", "entering", "sub1", 0),
                    ("DOWNLOAD", "entering", "sub1", 0),
                    ("APP_START", "entering", "main1", 0),
                    ("APP_STOP", "entering", "main1", 0),
                    ("APP_STOP", "entering", "main1", 0),
                ]
            finally:
                await session.terminate(force=True)
                await session.wait_ended(NEVER)
    finally:
        for user in (owner, stranger):
            await client.users.delete(user.name)
