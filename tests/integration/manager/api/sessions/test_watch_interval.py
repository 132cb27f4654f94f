"""A watch with an interval gets what happens in a busy time together, and misses and repeats nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from google.protobuf.duration_pb2 import Duration

from retinue.manager.v1 import session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.rig import Service, bearer

pytestmark = pytest.mark.asyncio(loop_scope="session")

SESSIONS = 30
INTERVAL = 0.5


async def watched(service: Service, token: str, request: pb.WatchSessionsRequest) -> tuple[Sequence[str], int, float]:
    """The sessions whose creations are seen until there are all, in how many responses, and how long these took."""
    seen: list[str] = []
    times: list[float] = []
    async with service.channel() as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        async for response in stub.WatchSessions(request, metadata=bearer(token)):
            times.append(time.monotonic())
            seen += [event.session_id for event in response.events if event.HasField("created")]
            if len(seen) >= SESSIONS:
                break
    # The first one says where the watch begins.
    return seen, len(times) - 1, times[-1] - times[0]


async def test_events_of_a_busy_time_come_together(service: Service) -> None:
    token = await service.user("ada")
    request = pb.CreateSessionRequest()
    request.spec.type, request.spec.kernel.slots["cpu"] = session_pb2.SESSION_TYPE_INTERACTIVE, "1"
    made: list[str] = []
    interval = Duration(nanos=int(INTERVAL * 1e9))
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        plain, batched = [
            group.create_task(watched(service, token, watch))
            for watch in (
                pb.WatchSessionsRequest(after_revision=0),
                pb.WatchSessionsRequest(after_revision=0, min_interval=interval),
            )
        ]
        async with service.channel() as channel:
            stub = session_service_pb2_grpc.SessionServiceStub(channel)
            for _ in range(SESSIONS):
                made.append((await stub.CreateSession(request, metadata=bearer(token))).session.id)
                # Longer than the journal collects by itself.
                await asyncio.sleep(0.03)
    assert plain.result()[0] == made
    seen, responses, seconds = batched.result()
    assert seen == made
    assert (responses - 1) * INTERVAL <= seconds
