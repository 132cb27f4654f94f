"""What callers are told of mistakes that people make: which names there are, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from retinue.manager.v1 import (
    account_service_pb2,
    account_service_pb2_grpc,
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    session_pb2,
    session_service_pb2_grpc,
)
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.rig import Service, bearer, failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc.aio

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(slots=True)
class People:
    """Users who call, by name."""

    service: Service
    channel: grpc.aio.Channel
    tokens: dict[str, str]

    async def told(self, caller: str, method: str, request: Any) -> str:
        """Returns the message of a call that fails."""
        stubs = (
            session_service_pb2_grpc.SessionServiceStub(self.channel),
            fleet_service_pb2_grpc.FleetServiceStub(self.channel),
            account_service_pb2_grpc.AccountServiceStub(self.channel),
        )
        call = next(getattr(stub, method) for stub in stubs if hasattr(stub, method))
        found = await failure(call(request, metadata=bearer(self.tokens[caller])))
        return found.text

    async def create(self, caller: str, **spec: Any) -> pb.CreateSessionResponse:
        stub: Any = session_service_pb2_grpc.SessionServiceStub(self.channel)
        answer: pb.CreateSessionResponse = await stub.CreateSession(
            session(**spec), metadata=bearer(self.tokens[caller])
        )
        return answer


def session(**spec: Any) -> pb.CreateSessionRequest:
    made = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_BATCH, kernel=session_pb2.KernelSpec(command=["true"]))
    made.MergeFrom(session_pb2.SessionSpec(**spec))
    return pb.CreateSessionRequest(spec=made)


@pytest_asyncio.fixture(loop_scope="session")
async def people(service: Service) -> AsyncIterator[People]:
    tokens = {
        "carl": await service.user("carl", projects=()),
        "ann": await service.user("ann", projects=("default", "vision")),
        "bob": await service.user("bob"),
        "root": await service.user("root", role="ADMIN"),
    }
    async with service.channel() as channel:
        yield People(service, channel, tokens)


async def test_who_is_in_no_project_or_in_several_is_told_what_to_do(people: People) -> None:
    assert "in none: an administrator runs `retinue projects member PROJECT carl`" in await people.told(
        "carl", "CreateSession", session()
    )
    assert "spec.project: is required, as you are in several: give one of default, vision" in await people.told(
        "ann", "CreateSession", session()
    )


async def test_names_that_there_are_not_come_with_those_there_are(people: People) -> None:
    group = await people.told("bob", "CreateSession", session(resource_group="defualt"))
    assert "spec.resource_group: defualt is not a resource group; there is default" in group
    project = await people.told("ann", "CreateSession", session(project="vison"))
    assert "you may not use project vison (or it does not exist); you are in default, vision" in project
    got = await people.told("bob", "GetResourceGroup", fleet_service_pb2.GetResourceGroupRequest(name="gpu"))
    assert "no such resource group: gpu; there is default" in got
    member = account_service_pb2.SetMembershipRequest(
        project="vison", user="bob", role=account_service_pb2.PROJECT_ROLE_MEMBER
    )
    assert "no such project: vison; there are default, vision" in await people.told("root", "SetMembership", member)


async def test_a_taken_name_is_named(people: People) -> None:
    await people.create("bob", name="train")
    taken = await people.told("bob", "CreateSession", session(name="train"))
    assert "there is a session train of yours that has not ended" in taken
    create = account_service_pb2.CreateProjectRequest(project=account_service_pb2.Project(name="vision"))
    assert "project vision exists already" in await people.told("root", "CreateProject", create)


async def test_sessions_of_others_are_hinted_at_where_the_caller_may_read_them(people: People) -> None:
    await people.create("bob", name="others")
    hint = "no such session: others; there is bob/others"
    assert hint in await people.told("root", "GetSession", pb.GetSessionRequest(session="others"))
    silent = await people.told("ann", "GetSession", pb.GetSessionRequest(session="others"))
    assert ("no such session" in silent, "bob" in silent) == (True, False)
    assert "bob" not in await people.told("root", "GetSession", pb.GetSessionRequest(session="oth"))
