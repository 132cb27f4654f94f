"""The service that tests of endpoints call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio
from sqlalchemy import text

from tests.integration.manager.endpoints.controlled import TERM, Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.manager.rig import Service


@pytest_asyncio.fixture(loop_scope="session")
async def rig(service: Service) -> AsyncIterator[Rig]:
    tokens = {name: await service.user(name) for name in ("ada", "bob")}
    async with service.database.transaction() as tx:
        await tx.execute(text("UPDATE leadership SET term = :term"), {"term": TERM})
    async with service.channel() as channel:
        yield Rig(service, channel, tokens)
