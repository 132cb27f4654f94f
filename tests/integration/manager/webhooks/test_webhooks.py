"""Webhooks over a real database and real HTTP: sent in order, at least once, over restarts, and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from standardwebhooks import Webhook

from retinue.manager.domain.session.spec import WebhookSpec
from retinue.manager.idle.controller import IdleController
from retinue.manager.session.transaction import terminate
from retinue.manager.webhooks import post
from retinue.manager.webhooks.dispatcher import WebhookDispatcher
from retinue.rpc.core.addresses import PUBLIC_ONLY, AddressPolicy
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import submit
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from retinue.manager.store.postgres.database import Database

SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
LOCAL = AddressPolicy((ipaddress.ip_network("127.0.0.0/8"),))


class Receiver:
    """Takes requests, and answers as the test asks."""

    def __init__(self) -> None:
        self.port = 0
        self.answers: list[bytes] = []
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["Content-Length"])))
        self.requests.append((headers, body))
        answer = self.answers.pop(0) if self.answers else b"204 No Content"
        writer.write(b"HTTP/1.1 " + answer + b"\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    @property
    def events(self) -> list[str]:
        return [body["event"] for _, body in self.requests]


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


async def dispatch(database: Database, dispatcher: WebhookDispatcher) -> bool:
    """One round, with what is to be tried later tried now; returns whether anything is left."""
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE webhook_delivery SET next_try_time = now()"))
    await dispatcher.collect()
    left = await dispatcher.begin()
    while dispatcher._sending:  # noqa: SLF001  # until all answers have come
        await dispatcher.wait(None)
        left = await dispatcher.begin()
    return left


async def count(database: Database, table: str) -> int:
    async with database.transaction() as tx:
        return int((await tx.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())  # noqa: S608


async def test_sent_in_order_and_again_until_taken_over_restarts(database: Database) -> None:
    async with receiver() as server:
        url = f"http://127.0.0.1:{server.port}/hook?x=1"
        webhook = WebhookSpec(url, ("CREATED", "CANCELLED"), SECRET)
        session_id = await submit(database, "ann", "watched", webhooks=(webhook,))
        await submit(database, "ann", "unwatched")
        async with database.transaction() as tx:
            await terminate(tx, session_id, by="ann", force=False)
        server.answers = [b"500 Not Now", b"302 Found"]
        assert await dispatch(database, WebhookDispatcher(database, TERM, LOCAL))
        assert server.events == ["CREATED"], "what comes later waits for what came before"
        # Another leader continues where the one before stopped.
        dispatcher = WebhookDispatcher(database, TERM, LOCAL)
        assert await dispatch(database, dispatcher)
        assert not await dispatch(database, dispatcher)
        assert server.events == ["CREATED", "CREATED", "CREATED", "CANCELLED"]
        keys = [headers["webhook-id"] for headers, _ in server.requests]
        assert len(set(keys[:3])) == 1
        assert keys[3] != keys[0]
        for headers, body in server.requests:
            assert Webhook(SECRET).verify(json.dumps(body, separators=(",", ":")), headers) == body
        assert server.requests[3][1]["session"]["reason"] == "TERMINATED_BY_USER"
        assert server.requests[3][1]["session"]["id"] == str(session_id)
        # Nothing is left behind, and nothing is sent twice.
        assert (await count(database, "webhook"), await count(database, "webhook_delivery")) == (0, 0)
        assert not await dispatch(database, WebhookDispatcher(database, TERM, LOCAL))
        assert len(server.requests) == 4


async def test_warnings_of_the_idle_policy_are_sent(database: Database) -> None:
    async with receiver() as server:
        webhook = WebhookSpec(f"http://127.0.0.1:{server.port}/", ("IDLE_WARNING",))
        session_id = await submit(database, "ann", "idle", webhooks=(webhook,))
        async with database.transaction() as tx:
            await tx.execute(text("UPDATE session SET state = 'RUNNING', type = 'INTERACTIVE'"))
            await tx.execute(
                text("""UPDATE resource_group SET idle_policy = '{"interaction": 6000, "warning": 4000}'""")
            )
            await tx.execute(text("UPDATE session SET start_time = now() - interval '3000 s'"))
        deadlines, dispatcher = (
            IdleController(database, TERM, lambda _: None, lambda _: None),
            WebhookDispatcher(database, TERM, LOCAL),
        )
        for _ in range(2):
            await deadlines.look()
            assert not await dispatch(database, dispatcher)
        ((headers, body),) = server.requests
        assert headers["Retinue-Event"] == "IDLE_WARNING"
        assert (body["session"]["id"], body["session"]["reason"]) == (str(session_id), "INTERACTION_WARNING")
        assert "it ends at" in body["session"]["message"]


async def test_inner_addresses_get_nothing(database: Database) -> None:
    async with receiver() as server:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            webhook = WebhookSpec(f"http://{host}:{server.port}/", ("CREATED",))
            await submit(database, "ann", f"to-{len(host)}", webhooks=(webhook,))
        assert await dispatch(database, WebhookDispatcher(database, TERM, PUBLIC_ONLY))
        assert server.requests == []
        async with database.transaction() as tx:
            assert set((await tx.execute(text("SELECT tries FROM webhook_delivery"))).scalars()) == {1}


async def test_a_webhook_that_never_takes_anything_is_given_up(database: Database) -> None:
    async with receiver() as server:
        server.answers = [b"500 No"] * 100
        await submit(
            database, "ann", "refused", webhooks=(WebhookSpec(f"http://127.0.0.1:{server.port}/", ("CREATED",)),)
        )
        dispatcher = WebhookDispatcher(database, TERM, LOCAL)
        for _ in range(30):
            await dispatch(database, dispatcher)
        assert len(server.requests) == 24
        assert await count(database, "webhook_delivery") == 0


async def test_slow_receivers_hold_up_only_their_owner(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "_SECONDS", 3600.0)
    held = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    slow = await asyncio.start_server(hold, "127.0.0.1", 0)
    async with slow, receiver() as server:
        never = WebhookSpec(f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/", ("CREATED",))
        for number in range(70):
            await submit(database, "ann", f"slow-{number}", webhooks=(never,))
        dispatcher = WebhookDispatcher(database, TERM, LOCAL)

        def received(number: int) -> bool:
            return len(server.requests) > number

        running = asyncio.create_task(dispatcher.run())
        try:
            for number in range(3):
                quick = WebhookSpec(f"http://127.0.0.1:{server.port}/", ("CREATED",))
                await submit(database, "bob", f"quick-{number}", webhooks=(quick,))
                dispatcher.wake()
                await eventually(partial(received, number))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            held.set()


async def test_an_entry_and_a_secret_that_cannot_be_read_cost_themselves_only(database: Database) -> None:
    async with receiver() as server:
        webhook = WebhookSpec(f"http://127.0.0.1:{server.port}/", ("CREATED", "CANCELLED"), SECRET)
        ids = [await submit(database, "ann", name, webhooks=(webhook,)) for name in ("entry", "secret", "sound")]
        for session_id in ids:
            async with database.transaction() as tx:
                await terminate(tx, session_id, by="ann", force=False)
        async with database.transaction() as tx:
            of_first = {"id": ids[0]}
            await tx.execute(
                text("UPDATE journal SET payload = '7' WHERE session_id = :id AND kind = 'SESSION_MOVED'"), of_first
            )
            await tx.execute(text("UPDATE webhook SET secret = 'x' WHERE session_id = :id"), {"id": ids[1]})
        dispatcher = WebhookDispatcher(database, TERM, LOCAL)
        for _ in range(2):
            assert await dispatch(database, dispatcher)
        sent = [(body["session"]["id"], body["event"]) for _, body in server.requests]
        assert sorted(sent) == sorted([(str(ids[0]), "CREATED"), (str(ids[2]), "CREATED"), (str(ids[2]), "CANCELLED")])
