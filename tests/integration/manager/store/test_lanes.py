"""Users keep all their connections busy: agents, administrators and the leader do not notice."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status
from sqlalchemy import text

from retinue.manager.server import interceptors, turn_taking
from retinue.manager.store.postgres import connections
from retinue.manager.store.postgres.database import Database, StoreBusy, StoreUnavailable
from retinue.manager.store.postgres.lanes import POOL_SIZES, Lane, in_lane
from retinue.manager.v1 import (
    account_service_pb2,
    account_service_pb2_grpc,
    enrollment_service_pb2,
    enrollment_service_pb2_grpc,
    template_service_pb2,
    template_service_pb2_grpc,
)
from tests.integration.manager.reporting_node import enrol
from tests.integration.manager.rig import Service, bearer
from tests.support.eventually import NEVER, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_a_lane_that_is_full_does_not_keep_others_waiting(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = service.database
    tokens = [await service.user(f"u{number}") for number in range(POOL_SIZES[Lane.USERS] + 1)]
    administrator = await service.user("root", role="ADMIN")
    await enrol(database, ["n1"])
    # What waits for the lock waits as long as the rest takes.
    monkeypatch.setattr(database, "_statement_timeout", 2 * NEVER)
    monkeypatch.setattr(interceptors, "UNARY_SECONDS", NEVER)
    await database.dispose()
    database._pools.clear()  # noqa: SLF001  # those that are made now have these bounds
    # A user for whom no place is left is sent away soon; no other caller is, however long that takes.
    monkeypatch.setattr(turn_taking, "PLACE_SECONDS", 1)
    monkeypatch.setattr(connections, "POOL_SECONDS", NEVER)

    blocker = await database.connect("test")
    async with service.channel() as channel, service.as_agent("n1") as agent_channel:
        templates = template_service_pb2_grpc.TemplateServiceStub(channel)
        accounts = account_service_pb2_grpc.AccountServiceStub(channel)
        enrollment = enrollment_service_pb2_grpc.EnrollmentServiceStub(agent_channel)
        request = template_service_pb2.ListTemplatesRequest()
        try:
            await blocker.execute("BEGIN")
            await blocker.execute("LOCK TABLE template")
            calls = [
                asyncio.ensure_future(templates.ListTemplates(request, metadata=bearer(one))) for one in tokens[1:]
            ]

            async def all_wait() -> bool:
                with in_lane(Lane.BACKGROUND):
                    async with database.transaction() as tx:
                        return bool((await tx.execute(text(WAITING))).scalar_one() == POOL_SIZES[Lane.USERS])

            await eventually(all_wait)
            # Those for whom nothing is left are sent away soon, with the time after which to try again.
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await templates.ListTemplates(request, metadata=bearer(tokens[0]))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            status = rpc_status.from_call(refused.value)
            assert status is not None
            assert any(detail.Is(RetryInfo.DESCRIPTOR) for detail in status.details)

            listed = account_service_pb2.ListUsersRequest()
            assert (await accounts.ListUsers(listed, metadata=bearer(administrator))).users
            announcement = enrollment_service_pb2.AnnounceRequest(
                agent_id="n1", address="192.0.2.1:1", instance="i", version="1"
            )
            await enrollment.Announce(announcement)
            with in_lane(Lane.LEADER):
                async with database.transaction() as tx:
                    assert (await tx.execute(text("SELECT term FROM leadership"))).scalar_one() == 0
            assert not any(call.done() for call in calls), "all of that while the connections were in use"
        finally:
            await blocker.close()
        assert len(await asyncio.gather(*calls)) == POOL_SIZES[Lane.USERS]


async def test_what_a_task_starts_is_in_its_lane(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "POOL_SECONDS", 0.1)
    database = Database(database_url, sizes={Lane.USERS: 1, Lane.LEADER: 1})

    async def name() -> str:
        async with database.transaction() as tx:
            return str((await tx.execute(text("SELECT current_setting('application_name')"))).scalar_one())

    try:
        with in_lane(Lane.LEADER):
            leading = asyncio.create_task(name())
        assert (await leading).startswith("retinue-leader-pool/")
        assert (await name()).startswith("retinue-users/")
        async with database.transaction() as tx:
            await tx.execute(text("SELECT 1"))
            with pytest.raises(StoreBusy):
                await name()
            with in_lane(Lane.LEADER):
                assert await name()
    finally:
        await database.dispose()


async def test_an_answer_that_does_not_come_is_waited_for_so_long_only(database_url: str) -> None:
    # The server's own timeout is that of statements; this is for a server that is silent.
    database = Database(database_url, statement_timeout=3600.0)

    async def sleep() -> None:
        async with database.transaction() as tx:
            tx.limit_seconds = 0.2
            await tx.execute(text("SELECT pg_sleep(3600)"))

    try:
        with pytest.raises(StoreUnavailable):
            await sleep()
        async with database.transaction() as tx:
            assert (await tx.execute(text("SELECT 1"))).scalar_one() == 1
    finally:
        await database.dispose()
