"""Images that say anything of themselves: each costs its own session at most, with a reason that can be read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.docker.hostile_images import IMAGES, RUNS, load
from tests.integration.agent.docker.sound import check_message, place_another, unharmed

if TYPE_CHECKING:
    from tests.integration.agent.docker.cluster import DockerCluster

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
            await session.wait_ended(240)
            check_message(session)
            assert [kernel.epoch for kernel in session.kernels] == [1], (name, session.view)
            found[name] = (session.result, "" if session.result == "SUCCESS" else session.view.reason)
        expected = {
            name: ("SUCCESS", "") if image.reason == RUNS else ("FAILURE", image.reason)
            for name, image in IMAGES.items()
        }
        assert found == expected
