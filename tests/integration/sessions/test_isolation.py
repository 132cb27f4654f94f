"""The isolation of kernels, asked for and decided by resource groups, on nodes that run native processes only."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

from retinue.client.errors import InvalidRequest, NotFound
from retinue.manager.v1 import endpoint_pb2, session_pb2, template_service_pb2
from retinue.types.v1 import isolation_pb2
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client, Session
    from retinue.client.spec import SessionOptions

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def policy(client: Client, group: str = "default", **isolations: Any) -> AsyncIterator[None]:
    """The policy of a group, for a while."""
    await client.resource_groups.update(group, **isolations)
    try:
        yield
    finally:
        await client.resource_groups.update(group, isolations=[], default_isolation="")


@asynccontextmanager
async def group_without_agents(client: Client) -> AsyncIterator[str]:
    """A group whose agents are still to come."""
    await client.resource_groups.create("to-come")
    try:
        yield "to-come"
    finally:
        await client.resource_groups.delete("to-come")


async def pending_reason(session: Session, reason: str) -> str:
    """Waits until a session is pending for a reason; returns the message."""
    explanation = await eventually(session.explain, lambda found: found.reason == reason)
    return str(explanation.message)


def isolations(session: Session) -> list[str]:
    return [isolation_pb2.Isolation.Name(kernel.isolation).removeprefix("ISOLATION_") for kernel in session.kernels]


async def checked(client: Client, **options: Any) -> list[str]:
    """Returns the isolations that the kernels of a session would have."""
    return isolations(await client.sessions.create(type="interactive", validate_only=True, **options))


async def test_agents_say_what_they_run_and_why_not(client: Client) -> None:
    agents = [agent async for agent in client.agents.list()]
    assert agents
    for agent in agents:
        status = {status.name: status for status in agent.runtimes}
        assert [name for name in agent.available_runtimes if not status[name].available] == []
        assert "process" in agent.available_runtimes
        assert "docker" not in agent.available_runtimes
        assert "Docker" in status["docker"].message


async def test_what_no_agent_of_the_group_runs_is_refused_at_once(client: Client) -> None:
    for create in (client.sessions.create, client.sessions.check):
        with pytest.raises(
            InvalidRequest, match=r"no agent of resource group default has a runtime for containers: .*Docker"
        ) as no:
            await create(type="batch", command=["true"], image="alpine:3")
        assert [wrong.field for wrong in no.value.violations] == ["spec.kernel.image"]
    # What an image implies by itself is not what is asked for.
    asked: list[tuple[SessionOptions, Literal["vm", ""]]] = [
        ({"type": "batch", "command": ["true"], "image": "alpine:3", "isolation": "vm"}, ""),
        ({"type": "batch", "command": ["true"], "image": "alpine:3"}, "vm"),
    ]
    for options, default in asked:
        async with policy(client, default_isolation=default):
            with pytest.raises(InvalidRequest, match="has a runtime for virtual machines with images: "):
                await client.sessions.create(**options)


async def test_a_group_whose_agents_are_still_to_come_takes_everything(client: Client) -> None:
    async with group_without_agents(client) as group:
        session = await client.sessions.create(
            type="batch", command=["true"], image="alpine:3", slots={"tpu.device": "1"}, resource_group=group
        )
        assert isolations(session) == ["CONTAINER"]
        await session.terminate()
        await session.wait_ended(NEVER)


async def test_a_kernel_is_a_process_when_asked(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["true"], isolation="process")
    await session.wait_ended(NEVER)
    assert (session.result, isolations(session)) == ("SUCCESS", ["PROCESS"])
    # What was asked for is kept, and what was not is not made up.
    assert session.view.spec.kernel.isolation == isolation_pb2.ISOLATION_PROCESS
    other = await client.sessions.create(type="batch", command=["true"])
    assert other.view.spec.kernel.isolation == isolation_pb2.ISOLATION_UNSPECIFIED
    await other.wait_ended(NEVER)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"isolation": "container"}, "spec.kernel.image"),
        ({"isolation": "process", "image": "alpine:3"}, "spec.kernel.image"),
        ({"cluster_size": 2, "sub_isolation": "container"}, "spec.roles[0].kernel.image"),
    ],
)
async def test_what_does_not_fit_together_is_refused(client: Client, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.sessions.create(type="interactive", **options)
    assert [violation.field for violation in refused.value.violations] == [field]


async def test_an_isolation_of_a_later_version_is_refused(client: Client) -> None:
    spec = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_INTERACTIVE, kernel=session_pb2.KernelSpec(image="i"))
    spec.kernel.isolation = 77  # type: ignore[assignment]
    with pytest.raises(InvalidRequest) as refused:
        await client.sessions.create_from(spec)
    assert [violation.field for violation in refused.value.violations] == ["spec.kernel.isolation"]


async def test_a_group_allows_isolations_and_has_a_default(client: Client) -> None:
    allowed: dict[str, Any] = {"isolations": ["process", "vm"], "default_isolation": "vm"}
    async with policy(client, **allowed):
        with pytest.raises(InvalidRequest) as refused:
            await client.sessions.create(type="interactive", image="alpine:3", isolation="container")
        (violation,) = refused.value.violations
        assert violation.field == "spec.kernel.isolation"
        assert "does not allow containers (allowed: process, vm)" in violation.description
        native = await client.sessions.create(type="batch", command=["true"], isolation="process")
        await native.wait_ended(NEVER)
        assert native.result == "SUCCESS"
    # Not every node has what virtual machines need.
    async with group_without_agents(client) as group, policy(client, group, **allowed):
        # Nothing says what it is: it is what the default says.
        assert await checked(client, resource_group=group) == ["VM"]
        session = await client.sessions.create(type="batch", command=["true"], resource_group=group)
        assert isolations(session) == ["VM"]
        await eventually(session.explain, lambda found: found.reason not in ("", "QUEUED"))
        # It is pending: a change of policy is a reason to wait, and taken back it is none.
        await client.resource_groups.update(group, isolations=["process"], default_isolation="")
        message = await pending_reason(session, "ISOLATION_NOT_ALLOWED")
        assert message == f"resource group {group} does not allow virtual machines"
        await client.resource_groups.update(group, isolations=["vm"])
        await eventually(session.explain, lambda found: found.reason != "ISOLATION_NOT_ALLOWED")
        await session.terminate()
        await session.wait_ended(NEVER)


async def test_replicas_are_what_the_default_was_when_their_revision_was_made(client: Client) -> None:
    spec = endpoint_pb2.EndpointSpec(name="isolated")
    spec.scaling.min, spec.scaling.max = 1, 2
    spec.revision.port = 8000
    spec.revision.session.kernel.command.append("true")

    async def kinds() -> list[str]:
        replicas = (await client.endpoints.get("isolated")).replicas
        sessions = [await client.sessions.get(replica.session_id) for replica in replicas]
        return [kind for session in sessions for kind in isolations(session)]

    async def gone() -> bool:
        try:
            await client.endpoints.get("isolated")
        except NotFound:
            return True
        return False

    # Nothing has to boot.
    async with group_without_agents(client) as group:
        spec.revision.session.resource_group = group
        async with policy(client, group, isolations=["vm", "process"], default_isolation="vm"):
            await client.endpoints.create(spec)
            await eventually(kinds, ["VM"].__eq__)
        try:
            spec.scaling.min = 2
            await client.endpoints.update("isolated", endpoint_pb2.EndpointSpec(scaling=spec.scaling))
            await eventually(kinds, ["VM", "VM"].__eq__)
        finally:
            await client.endpoints.delete("isolated")
            await eventually(gone)


async def test_a_request_that_is_repeated_is_answered_as_before_the_default_changed(client: Client) -> None:
    request = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_BATCH)
    request.kernel.image = "alpine:3"
    request.kernel.command.append("true")
    request_id = str(uuid.uuid4())
    async with group_without_agents(client) as group:
        request.resource_group = group
        first = await client.sessions.create_from(request, request_id=request_id)
        async with policy(client, group, isolations=["vm", "process"], default_isolation="vm"):
            again = await client.sessions.create_from(request, request_id=request_id)
            assert again.id == first.id
            assert isolations(again) == isolations(first) == ["CONTAINER"]
            await pending_reason(first, "ISOLATION_NOT_ALLOWED")
        await first.terminate()
        await first.wait_ended(NEVER)


@pytest.mark.parametrize(
    "isolations_of",
    [
        {"isolations": ["process", "container"], "default_isolation": "vm"},
        {"isolations": ["process", "process"]},
    ],
)
async def test_a_policy_that_contradicts_itself_is_refused(client: Client, isolations_of: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await client.resource_groups.update("default", **isolations_of)
    group = await client.resource_groups.get("default")
    assert (list(group.isolations), group.default_isolation) == ([], 0)


async def test_the_default_stays_among_what_is_allowed(client: Client) -> None:
    async with policy(client, default_isolation="process"):
        with pytest.raises(InvalidRequest) as refused:
            await checked(client, image="alpine:3")
        (violation,) = refused.value.violations
        said = "must be empty in resource group default, whose default isolation is process"
        assert (violation.field, violation.description) == ("spec.kernel.image", said)
        with pytest.raises(InvalidRequest) as refused:
            await client.resource_groups.update("default", isolations=["vm"])
        (violation,) = refused.value.violations
        assert violation.field == "resource_group.default_isolation"


async def test_a_template_says_how_its_sessions_are_isolated(client: Client) -> None:
    def template(name: str, **kernel: Any) -> template_service_pb2.Template:
        spec = session_pb2.SessionSpec(kernel=session_pb2.KernelSpec(**kernel))
        return template_service_pb2.Template(name=name, project="default", spec=spec)

    with pytest.raises(InvalidRequest):
        await client.templates.create(template("both", image="i:1", isolation=isolation_pb2.ISOLATION_PROCESS))
    await client.templates.create(template("machine", isolation=isolation_pb2.ISOLATION_VM))
    try:
        async with group_without_agents(client) as group:
            assert await checked(client, template="machine", resource_group=group) == ["VM"]
            assert await checked(client, template="machine", image="alpine:3", resource_group=group) == ["VM"]
        assert await checked(client, template="machine", isolation="process") == ["PROCESS"]
    finally:
        await client.templates.delete("machine")
