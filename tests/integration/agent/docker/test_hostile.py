"""Images that say anything of themselves: each costs its own session at most, with a reason that can be read.
Registries that answer anything: each fetch fails with one of a few sentences or is ended by the start timeout,
and nothing of it is left.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.agent.docker import fetch_failures
from retinue.agent.docker.fetch_failures import FetchFailure
from retinue.manager.v1 import session_pb2
from tests.integration.agent.docker.hostile_images import IMAGES, RUNS, load
from tests.integration.agent.docker.hostile_registry import BANNER, ENDING, HANGING, LINK_LOCAL, SLOW, HostileRegistry
from tests.integration.agent.docker.sound import check_message, place_another, unharmed
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from retinue.client.aio import Client, Session
    from tests.integration.agent.docker.cluster import DockerCluster

START_TIMEOUT = dt.timedelta(seconds=3)
LONG_START_TIMEOUT = dt.timedelta(minutes=10)
FAILURES = {failure for failure in vars(fetch_failures).values() if isinstance(failure, FetchFailure)}
"""All that a session may say of a failed fetch."""
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_each_runs_or_ends_for_a_reason_and_nothing_else_is_harmed(one_node: DockerCluster) -> None:
    (engine,) = one_node.engines.values()
    references = {name: await asyncio.to_thread(load, engine, name, image) for name, image in IMAGES.items()}
    async with one_node.client() as client, unharmed(one_node, client):
        sessions = {
            name: await client.sessions.create(
                type="batch",
                image=reference,
                command=["sh", "-c", "[ $PWD = /home/work ]"],
                slots={"cpu": "0.1", "mem": "32m"},
            )
            for name, reference in references.items()
        }
        await place_another(client)
        found = {}
        for name, session in sessions.items():
            await session.wait_ended(NEVER)
            check_message(session)
            assert [kernel.attempt for kernel in session.kernels] == [1], (name, session.view)
            found[name] = (session.result, "" if session.result == "SUCCESS" else session.view.reason)
        expected = {
            name: ("SUCCESS", "") if image.reason == RUNS else ("FAILED", image.reason)
            for name, image in IMAGES.items()
        }
        assert found == expected


@pytest_asyncio.fixture(loop_scope="module")
async def registry(one_node: DockerCluster) -> AsyncIterator[HostileRegistry]:
    """The registry on the loopback of the node, while the group allows it."""
    node = one_node.agents[0].node
    assert node is not None

    def assign(action: str) -> None:
        command = ["ip", "-n", node.namespace, "address", action, f"{LINK_LOCAL}/32", "dev", "lo"]
        subprocess.run(command, check=True, capture_output=True)

    # What leads there stays in the namespace.
    await asyncio.to_thread(assign, "add")
    try:
        async with HostileRegistry(node.namespace) as registry, one_node.client() as client:
            await client.resource_groups.update("default", image_registries=["docker.io", registry.address])
            try:
                yield registry
            finally:
                await client.resource_groups.update("default", image_registries=[], start_timeout=LONG_START_TIMEOUT)
    finally:
        await asyncio.to_thread(assign, "del")


async def _create(client: Client, registry: HostileRegistry, names: Iterable[str]) -> dict[str, Session]:
    return {
        name: await client.sessions.create(
            type="batch",
            image=f"{registry.address}/{name}:1",
            command=["true"],
            slots={"cpu": "0.1", "mem": "32m"},
        )
        for name in sorted(names)
    }


async def _failure(client: Client, session: Session) -> tuple[str, str]:
    """Reason and message of the first start of a session that failed."""
    states = {
        session_pb2.SESSION_STATE_PENDING,
        session_pb2.SESSION_STATE_TERMINATED,
        session_pb2.SESSION_STATE_CANCELLED,
    }
    async with aclosing(client.sessions.watch(after_revision=0, session_id=session.id)) as watched:
        async for event in watched:
            if (
                event.HasField("session_moved")
                and event.session_moved.to_state in states
                and event.session_moved.reason
            ):
                return event.session_moved.reason, event.session_moved.message
    raise AssertionError


async def test_answers_that_make_no_sense(one_node: DockerCluster, registry: HostileRegistry) -> None:
    async with one_node.client() as client, unharmed(one_node, client):
        sessions = await _create(client, registry, ENDING)
        await place_another(client)
        for name, session in sessions.items():
            reason, message = await _failure(client, session)
            said = {(each.reason, f"image {registry.address}/{name}:1 {each.words}") for each in FAILURES}
            assert (reason, message) in said, name
            await session.refresh()
            check_message(session)
            assert BANNER not in str(session.view)
            await session.terminate(force=True)
        # All of them were asked, and the engine was redirected to addresses that the agent does not allow:
        # no answer from there is passed on.
        assert registry.asked >= ENDING | {"inner service"}
        for session in sessions.values():
            await session.wait_ended(NEVER)


async def test_answers_that_do_not_end(one_node: DockerCluster, registry: HostileRegistry) -> None:
    async with one_node.client() as client, unharmed(one_node, client):
        await client.resource_groups.update("default", start_timeout=LONG_START_TIMEOUT)
        sessions = await _create(client, registry, HANGING | SLOW)
        await eventually(lambda: all(registry.hanging.get(name) for name in HANGING) and registry.asked >= SLOW)
        await place_another(client)
        await client.resource_groups.update("default", start_timeout=START_TIMEOUT)
        for name, session in sessions.items():
            reason, message = await _failure(client, session)
            if name in HANGING:
                assert reason == "START_TIMEOUT"
                assert message.startswith("not every kernel was ready in time: not on ")
            else:
                assert reason in {"START_TIMEOUT", "IMAGE_PULL_FAILED", "IMAGE_INVALID"}
            await session.terminate(force=True)
        # Others have their time again.
        await client.resource_groups.update("default", start_timeout=LONG_START_TIMEOUT)
        for session in sessions.values():
            await session.wait_ended(NEVER)
        # The engine breaks off layers. It keeps a request for a manifest until the registry ends it,
        # even without a caller (Docker 20.10).
        await eventually(lambda: not registry.hanging["huge-layer"])
