"""One user for tests of sessions that need no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from retinue.manager.v1 import session_service_pb2_grpc
from tests.integration.manager.api.sessions.ada import Ada

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.manager.rig import Service


@pytest_asyncio.fixture(loop_scope="session")
async def ada(service: Service) -> AsyncIterator[Ada]:
    token = await service.user("ada")
    async with service.channel() as channel:
        yield Ada(session_service_pb2_grpc.SessionServiceStub(channel), service, token)
