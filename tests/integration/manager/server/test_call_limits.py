"""A user who asks for too much is refused before anything is done; others and administrators are served meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo
from grpc_status import rpc_status

from retinue.client.spec import session_spec
from retinue.manager.api.sessions.convert import session_message
from retinue.manager.server import interceptors
from retinue.manager.server.call_limits import DEFAULT_LIMITS, CallerClass, Weight
from retinue.manager.server.turns import DEFAULT_PACING
from retinue.manager.session.submit import submit
from retinue.manager.store.sessions import listing
from retinue.manager.v1 import account_service_pb2, account_service_pb2_grpc, session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.rpc import loop_slices
from tests.integration.manager.rig import Service, bearer
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.manager.store.sessions.visibility import Visibility

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS = 40


@pytest.mark.attack("many-heavy-calls")
async def test_a_hostile_user_is_alone_with_heavy_lists(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    mallory, ada = bearer(await service.user("mallory")), bearer(await service.user("ada"))
    root = bearer(await service.user("root", role="ADMIN"))
    waiting, gate, list_page = 0, asyncio.Event(), listing.list_page

    async def slow(tx: Any, visibility: Visibility, **query: Any) -> Any:
        """Lists of mallory's hold their connections until the gate opens."""
        nonlocal waiting
        if visibility.owner == "mallory":
            waiting += 1
            await gate.wait()
        return await list_page(tx, visibility, **query)

    monkeypatch.setattr(listing, "list_page", slow)
    # Hers wait as long as the rest takes.
    monkeypatch.setattr(interceptors, "UNARY_SECONDS", NEVER)
    monkeypatch.setattr(service.database, "_statement_timeout", 2 * NEVER)
    await service.database.dispose()
    service.database._pools.clear()  # noqa: SLF001  # those that are made now have this bound
    allowed = DEFAULT_LIMITS[CallerClass.USER, Weight.HEAVY].at_a_time
    async with service.channel() as hostile, service.channel() as channel:
        heavy = session_service_pb2_grpc.SessionServiceStub(hostile)
        calls = [heavy.ListSessions(pb.ListSessionsRequest(), metadata=mallory) for _ in range(CALLS)]
        results = [asyncio.ensure_future(_outcome(call)) for call in calls]
        await eventually(lambda: sum(result.done() for result in results) >= CALLS - allowed and waiting >= allowed)
        assert waiting == allowed
        # What others ask for is answered while hers is under way.
        for metadata in (ada, root):
            stub = session_service_pb2_grpc.SessionServiceStub(channel)
            assert not (await stub.ListSessions(pb.ListSessionsRequest(), metadata=metadata)).sessions
            accounts = account_service_pb2_grpc.AccountServiceStub(channel)
            assert (await accounts.GetCaller(account_service_pb2.GetCallerRequest(), metadata=metadata)).user.name
        assert sum(result.done() for result in results) == CALLS - allowed
        gate.set()
        outcomes = await asyncio.gather(*results)
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert len(refused) == CALLS - allowed
    for error in refused:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(error)
        assert status is not None
        retry, quota = RetryInfo(), QuotaFailure()
        assert any(detail.Unpack(retry) for detail in status.details)
        assert any(detail.Unpack(quota) for detail in status.details)
        assert retry.retry_delay.ToMilliseconds() > 0
        assert [violation.subject for violation in quota.violations] == ["users/mallory"]


@pytest.mark.attack("bursts-of-one-user")
async def test_calls_of_others_are_answered_before_those_of_a_burst(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    mallory, ada = bearer(await service.user("mallory")), bearer(await service.user("ada"))
    writing, gate = 0, asyncio.Event()

    async def slow(tx: Any, owner: str, *arguments: Any, **options: Any) -> Any:
        """What mallory creates holds its connections until the gate opens."""
        nonlocal writing
        if owner == "mallory":
            writing += 1
            await gate.wait()
        return await submit(tx, owner, *arguments, **options)

    monkeypatch.setattr("retinue.manager.api.sessions.servicer.submit", slow)
    monkeypatch.setattr(interceptors, "UNARY_SECONDS", NEVER)
    monkeypatch.setattr(service.database, "_statement_timeout", 2 * NEVER)
    await service.database.dispose()
    service.database._pools.clear()  # noqa: SLF001  # those that are made now have this bound
    running = DEFAULT_PACING[CallerClass.USER].at_a_time
    request = pb.CreateSessionRequest(spec=session_spec(type="batch", command=["true"], slots={"cpu": "1"}))
    async with service.channel() as hostile, service.channel() as channel:
        burst = session_service_pb2_grpc.SessionServiceStub(hostile)
        calls = [burst.CreateSession(request, metadata=mallory) for _ in range(CALLS)]
        results = [asyncio.ensure_future(_outcome(call)) for call in calls]
        await eventually(lambda: writing >= running)
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        for _ in range(CALLS):
            made = (await stub.CreateSession(request, metadata=ada)).session
            assert (await stub.GetSession(pb.GetSessionRequest(session=made.id), metadata=ada)).session.id == made.id
            await stub.TerminateSession(pb.TerminateSessionRequest(session=made.id), metadata=ada)
        assert not any(result.done() for result in results)
        assert writing == running
        gate.set()
        assert await asyncio.gather(*results) == [None] * CALLS, "the others waited for their turn"


@pytest.mark.attack("bursts-of-one-user")
async def test_others_have_a_turn_while_a_page_is_made(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, turns, converted_at, over = bearer(await service.user("ada")), 0, list[int](), False

    def convert(*arguments: Any, **options: Any) -> session_pb2.Session:
        converted_at.append(turns)
        return session_message(*arguments, **options)

    async def beside() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr("retinue.manager.api.sessions.servicer.session_message", convert)
    # Each session takes as long as a slice.
    monkeypatch.setattr(loop_slices, "SLICE_SECONDS", 0.0)
    spec = session_spec(type="batch", command=["true"], slots={"cpu": "1"})
    async with service.channel() as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        await stub.BatchCreateSessions(pb.BatchCreateSessionsRequest(specs=[spec] * CALLS), metadata=ada)
        spinning = asyncio.create_task(beside())
        page = await stub.ListSessions(pb.ListSessionsRequest(page_size=CALLS), metadata=ada)
        over = True
        await spinning
    assert len(page.sessions) == len(converted_at) == CALLS
    assert len(set(converted_at)) == CALLS


async def _outcome(call: Any) -> grpc.aio.AioRpcError | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    return None
