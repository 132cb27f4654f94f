"""UpdateSession: what may change of a session, when, and by whom; repeated and refused requests change nothing."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from sqlalchemy import text

from retinue.manager.store.accounts import accounts
from retinue.manager.store.placement import quotas
from retinue.manager.v1 import (
    endpoint_pb2,
    endpoint_service_pb2,
    endpoint_service_pb2_grpc,
    session_pb2,
    session_service_pb2_grpc,
)
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.integration.manager.rig import Service, bearer, failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode


@dataclass
class Callers:
    """Ada owns sessions, bob administers her project, eve is a stranger, and root administers everything."""

    stub: session_service_pb2_grpc.SessionServiceAsyncStub
    service: Service
    tokens: dict[str, Any]

    async def create(self, name: str, **fields: Any) -> session_pb2.Session:
        spec = session_pb2.SessionSpec(name=name, type=session_pb2.SESSION_TYPE_INTERACTIVE, **fields)
        return (await self.stub.CreateSession(pb.CreateSessionRequest(spec=spec), metadata=self.tokens["ada"])).session

    def update(self, session: str, caller: str = "ada", etag: str = "", request_id: str = "", **fields: Any) -> Any:
        request = pb.UpdateSessionRequest(
            session=session,
            spec=session_pb2.SessionSpec(**fields),
            update_mask=FieldMask(paths=list(fields)),
            etag=etag,
            request_id=request_id,
        )
        return self.stub.UpdateSession(request, metadata=self.tokens[caller])

    async def updates(self, after: int, number: int) -> list[session_pb2.SessionUpdated]:
        watch = self.stub.WatchSessions(
            pb.WatchSessionsRequest(after=JournalPosition(revision=after)), metadata=self.tokens["ada"]
        )
        found: list[session_pb2.SessionUpdated] = []
        async for response in watch:
            found += [event.session_updated for event in response.events if event.HasField("session_updated")]
            if len(found) >= number:
                break
        watch.cancel()
        return found

    async def become(self, session: str, state: str) -> None:
        async with self.service.database.transaction() as tx:
            await tx.execute(
                text("UPDATE session SET state = :state WHERE id = :id"), {"state": state, "id": uuid.UUID(session)}
            )


@pytest_asyncio.fixture(loop_scope="session")
async def callers(service: Service) -> AsyncIterator[Callers]:
    tokens = {
        "ada": bearer(await service.user("ada")),
        "bob": bearer(await service.user("bob", projects=())),
        "eve": bearer(await service.user("eve")),
        "root": bearer(await service.user("root", role="ADMIN", projects=())),
    }
    async with service.database.transaction() as tx:
        await accounts.set_membership(tx, "bob", "default", "ADMIN")
    async with service.channel() as channel:
        yield Callers(session_service_pb2_grpc.SessionServiceStub(channel), service, tokens)


async def test_what_is_named_changes_and_is_in_the_journal(callers: Callers) -> None:
    made = await callers.create("before", labels={"team": "x"}, priority=20)
    answer = await callers.update(made.id, name="after", priority=30, hold=True)
    after = answer.session
    assert (after.spec.name, after.spec.priority, after.spec.hold) == ("after", 30, True)
    assert (after.etag != made.etag, dict(after.spec.labels)) == (True, {"team": "x"})
    got = await callers.stub.GetSession(pb.GetSessionRequest(session="after"), metadata=callers.tokens["ada"])
    assert got.session == after
    released = await callers.update(made.id, "bob", hold=False)
    assert (released.session.spec.hold, released.session.spec.priority) == (False, 30)
    await callers.update(made.id, "root", priority=0)
    updates = await callers.updates(answer.position.revision - 1, 3)
    assert [(updated.name, updated.priority, updated.hold, updated.user) for updated in updates] == [
        ("after", 30, True, "ada"),
        ("after", 30, False, "bob"),
        ("after", 0, False, "root"),
    ]
    # The former name is free.
    assert (await callers.create("before")).spec.name == "before"


async def test_what_is_so_already_is_no_change(callers: Callers) -> None:
    made = await callers.create("same")
    request_id = str(uuid.uuid4())
    first = await callers.update(made.id, hold=True, request_id=request_id)
    again = await callers.update(made.id, hold=True)
    assert (again.session.etag, again.position) == (first.session.etag, first.position)
    await callers.update(made.id, hold=False)
    repeated = await callers.update(made.id, hold=True, request_id=request_id)
    assert repeated == first, "the answer of the first"
    now = await callers.stub.GetSession(pb.GetSessionRequest(session=made.id), metadata=callers.tokens["ada"])
    assert not now.session.spec.hold
    reused = await failure(callers.update(made.id, hold=False, request_id=request_id))
    assert (reused.code, reused.reason) == (Code.INVALID_ARGUMENT, "REQUEST_ID_REUSED")
    # Also where the state would forbid a change.
    await callers.become(made.id, "RUNNING")
    await callers.update(made.id, hold=False, priority=10)


async def test_without_a_mask_what_is_given_changes(callers: Callers) -> None:
    made = await callers.create("plain", hold=True)

    def update(**fields: Any) -> Any:
        request = pb.UpdateSessionRequest(session=made.id, spec=session_pb2.SessionSpec(**fields))
        return callers.stub.UpdateSession(request, metadata=callers.tokens["ada"])

    spec = (await update(priority=0)).session.spec
    assert (spec.name, spec.priority, spec.hold) == ("plain", 0, True)
    refused = await failure(update(priority=1, project="p"))
    assert (refused.code, list(refused.fields)) == (Code.INVALID_ARGUMENT, ["spec.project"])
    # What is named and not given becomes the default.
    named = pb.UpdateSessionRequest(session=made.id, update_mask=FieldMask(paths=["priority", "hold"]))
    spec = (await callers.stub.UpdateSession(named, metadata=callers.tokens["ada"])).session.spec
    assert (spec.name, spec.priority, spec.hold) == ("plain", 10, False)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": "No"}, "spec.name"),
        ({"name": ""}, "spec.name"),
        ({"name": "sub1"}, "spec.name"),
        ({"priority": 101}, "spec.priority"),
        ({"priority": -1}, "spec.priority"),
        ({"project": "p"}, "update_mask"),
        ({"request_id": "x"}, "request_id"),
    ],
    ids=str,
)
async def test_wrong_requests(callers: Callers, fields: dict[str, Any], wrong: str) -> None:
    made = await callers.create("wrong")
    refused = await failure(callers.update(made.id, **fields))
    assert (refused.code, list(refused.fields)) == (Code.INVALID_ARGUMENT, [wrong])


async def test_states_etags_names_and_strangers(callers: Callers) -> None:
    made, other = await callers.create("made"), await callers.create("other")
    refused = await failure(callers.update(made.id, "eve", hold=True))
    assert refused.code is Code.NOT_FOUND
    refused = await failure(callers.update(made.id, etag="v999", hold=True))
    assert (refused.code, refused.reason) == (Code.ABORTED, "ETAG_MISMATCH")
    refused = await failure(callers.update(made.id, name="other"))
    assert (refused.code, refused.reason) == (Code.ALREADY_EXISTS, "NAME_TAKEN")
    assert "there is a session other of yours" in refused.text
    refused = await failure(callers.update(made.id, "root", name="other"))
    assert "the name other is taken: ada has a session of this name that has not ended" in refused.text
    await callers.become(other.id, "RUNNING")
    for fields in ({"hold": True}, {"priority": 11}, {"name": "x", "priority": 11}):
        refused = await failure(callers.update(other.id, **fields))
        assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "STATE_FORBIDS")
    assert (await callers.update(other.id, name="renamed")).session.spec.name == "renamed"
    await callers.become(other.id, "TERMINATED")
    refused = await failure(callers.update(other.id, name="again"))
    assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "STATE_FORBIDS")
    assert (await callers.update(made.id, name="renamed")).session.spec.name == "renamed"


async def test_of_two_that_take_a_name_one_gets_it(callers: Callers) -> None:
    made = [await callers.create(f"racer{number}") for number in range(4)]
    answers = await asyncio.gather(
        *(callers.update(session.id, name="winner") for session in made), return_exceptions=True
    )
    failed = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert (len(failed), {error.code() for error in failed}) == (3, {Code.ALREADY_EXISTS})


@pytest.mark.attack("higher-priority")
async def test_priority_is_bounded_by_quotas_for_all_but_administrators(callers: Callers) -> None:
    made = await callers.create("urgent", priority=40)
    async with callers.service.database.transaction() as tx:
        await quotas.put(tx, quotas.PROJECT, "default", quotas.Limits(highest_priority=30))
    for caller in ("ada", "bob"):
        refused = await failure(callers.update(made.id, caller, priority=50))
        assert (refused.code, refused.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        assert "above 30" in refused.text
    assert (await callers.update(made.id, "root", priority=50)).session.spec.priority == 50
    # Down is always allowed, also to what is still above.
    assert (await callers.update(made.id, "ada", priority=35)).session.spec.priority == 35


async def test_a_session_can_be_held_from_the_start(callers: Callers) -> None:
    made = await callers.create("still", hold=True)
    assert made.spec.hold
    spec = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_INTERACTIVE, hold=True)
    checked = await callers.stub.CreateSession(
        pb.CreateSessionRequest(spec=spec, validate_only=True), metadata=callers.tokens["ada"]
    )
    assert (checked.preview.reason, checked.preview.tier) == ("HELD", pb.REASON_TIER_POLICY)


async def test_what_a_newer_manager_has_stored_stays(callers: Callers) -> None:
    made = await callers.create("newer", hold=True)
    unknown = {"newer": {"a": 1}, "kernel_newer": "x"}
    async with callers.service.database.transaction() as tx:
        await tx.execute(
            text("""
                UPDATE session SET spec = jsonb_set(spec || '{"newer": {"a": 1}}', '{kernel,newer}', '"x"') WHERE id = :id
            """),
            {"id": uuid.UUID(made.id)},
        )
    changed = (await callers.update(made.id, name="renamed", priority=0, hold=False)).session.spec
    assert (changed.name, changed.priority, changed.hold) == ("renamed", 0, False)
    async with callers.service.database.transaction() as tx:
        stored = (await tx.execute(text("SELECT spec, hold FROM session WHERE name = 'renamed'"))).one()
    assert {"newer": stored.spec["newer"], "kernel_newer": stored.spec["kernel"]["newer"]} == unknown
    assert (stored.spec["priority"], "hold" in stored.spec, stored.hold) == (0, False, False)


async def test_a_replica_is_its_endpoints(callers: Callers) -> None:
    made = await callers.create("replica", endpoint="chat")
    spec = endpoint_pb2.EndpointSpec(name="chat")
    spec.scaling.max = 1
    spec.revision.port = 8000
    spec.revision.session.kernel.command.append("serve")
    async with callers.service.channel() as channel:
        stub: Any = endpoint_service_pb2_grpc.EndpointServiceStub(channel)
        await stub.CreateEndpoint(endpoint_service_pb2.CreateEndpointRequest(spec=spec), metadata=callers.tokens["ada"])
    refused = await failure(callers.update(made.id, hold=True))
    assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "ENDPOINT_MANAGED")
