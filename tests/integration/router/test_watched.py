"""Answers of single replicas, as a real engine counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.router.core.table import Revision
from retinue.router.traffic import read_traffic
from tests.integration.router.backends import Backend
from tests.integration.router.clients import request
from tests.integration.router.running import HOST, replicas, running, toy
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.asyncio
async def test_answers_of_the_replicas_of_a_watched_revision_are_counted_one_by_one(tmp_path: Path) -> None:
    async with Backend("a") as one, Backend("b") as two, running(tmp_path) as router:
        watched = Revision(1, 100, replicas=replicas(one.port, two.port), watched=True)
        await router.serve(toy(watched))
        await router.listening()
        for _ in range(6):
            assert (await request(router.port, HOST)).status == 200

        async def counted() -> dict[str, int]:
            traffic = await read_traffic(router.serving)
            return {item.session_id: item.answered for item in traffic.watched}

        expected = {f"session-{item.port}": item.requests for item in (one, two)}
        await eventually(counted, expected.__eq__)
        await router.serve(toy(Revision(1, 100, replicas=replicas(one.port))))
        assert sum(expected.values()) == 6
