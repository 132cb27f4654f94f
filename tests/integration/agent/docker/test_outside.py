"""Containers that people of the node pause and stop, and engines that end: what users are told of their sessions."""

from __future__ import annotations

import asyncio
import re
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import FailedPrecondition
from tests.integration.agent.docker.engine import IMAGE
from tests.integration.agent.output import printed
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Session
    from tests.integration.agent.docker.cluster import DockerCluster

SLOTS = {"cpu": "0.1", "mem": "32m"}
PAUSED = "the kernel is paused: its control group is frozen, as `docker pause` does it"
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_paused_session_says_so_and_ends(one_node: DockerCluster) -> None:
    (engine,) = one_node.engines.values()
    docker = engine.client()
    try:
        async with one_node.client() as client:
            session = await client.sessions.create(
                type="interactive", image=IMAGE, command=["sleep", "1000"], slots=SLOTS, preopen_ports=[(7000, 7000)]
            )
            await session.wait("RUNNING", timeout=NEVER)
            name = f"retinue-{session.id}.1"

            async def conditions() -> list[str]:
                await session.refresh()
                return [f"{item.type} {item.message}" for item in session.view.conditions]

            assert await conditions() == []
            await asyncio.to_thread(docker.pause, name)
            (said,) = await eventually(conditions, bool)
            assert said == f"PAUSED main1: paused: {PAUSED.partition(': ')[2]}"
            explained = await client.sessions.explain(session.id)
            assert [item.type for item in explained.conditions] == ["PAUSED"]
            with pytest.raises(FailedPrecondition, match=re.escape(PAUSED)):
                await _ran(session, "true")
            with pytest.raises(FailedPrecondition, match=re.escape(PAUSED)):
                await session.open_port(7000).__aenter__()
            await asyncio.to_thread(docker.unpause, name)
            await eventually(conditions, lambda found: not found)
            assert await _ran(session, "echo", "on") == b"on\n"

            await asyncio.to_thread(docker.pause, name)
            await eventually(conditions, bool)
            await session.terminate()
            await session.wait_ended(NEVER)
            assert session.view.reason == "TERMINATED_BY_USER"
            assert await conditions() == []
            assert not await one_node.wait_clean(NEVER)
            assert [list(agent.conditions) async for agent in client.agents.list()] == [[]]
    finally:
        docker.close()


async def test_an_engine_that_ends_takes_its_sessions_and_has_not_failed_them(one_node: DockerCluster) -> None:
    """Without live restore it stops its containers. A session with tries left runs again when it is back."""
    (engine,) = one_node.engines.values()
    async with one_node.client() as client:
        # Ended by the stop, and killed a second later.
        scripts = {"soft": "sleep 1000", "hard": "trap '' TERM; while :; do sleep 0.05; done"}
        once = {
            name: await client.sessions.create(
                type="batch", image=IMAGE, command=["sh", "-c", f"echo ready; {script}"], slots=SLOTS
            )
            for name, script in scripts.items()
        }
        retried = await client.sessions.create(
            type="batch",
            image=IMAGE,
            command=["sleep", "1000"],
            slots=SLOTS,
            # An engine that closes may still take one, and stop it too.
            max_attempts=10,
            retry_backoff=0.1,
        )
        for session in (*once.values(), retried):
            await session.wait("RUNNING", timeout=NEVER)
        for session in once.values():
            await eventually(partial(printed, client, session.id), "ready\n".__eq__)
        await asyncio.to_thread(engine.end, signal.SIGTERM)
        await asyncio.to_thread(engine.start)
        for name, session in once.items():
            await session.wait_ended(NEVER)
            assert (session.result, session.view.reason) == ("FAILED", "ENGINE_STOPPED"), session.view
            assert session.view.message == "main1 was stopped by the container engine of its node"
            assert session.view.exit_code == {"soft": 143, "hard": 137}[name]

        async def tries() -> tuple[str, int]:
            await retried.refresh()
            return retried.state, retried.view.retries

        await eventually(tries, lambda found: found[0] == "RUNNING" and found[1] > 0)
        await retried.terminate()
        await retried.wait_ended(NEVER)
        assert not await one_node.wait_clean(NEVER)


async def _ran(session: Session, *command: str) -> bytes:
    async with session.attach(command) as attached:
        await attached.end_input()
        return b"".join([piece.data async for piece in attached])
