"""StreamStats: what kernels use, again and again."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

from retinue.manager.agent_rpc.relay import AttemptLocation, Forwarder
from retinue.manager.agent_rpc.stats import StatsReader
from retinue.manager.api.visibility import caller_visibility, find_session
from retinue.manager.domain.session.attempts import attempt_id
from retinue.manager.domain.session.states import ENDED_SESSION_STATES
from retinue.manager.server.fields import Violations
from retinue.manager.store.placement import attempts
from retinue.manager.store.sessions import sessions
from retinue.manager.v1 import kernel_service_pb2 as pb

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncGenerator

    from retinue.agent.v1 import agent_service_pb2 as agent_pb
    from retinue.manager.store.placement.attempts import RunningKernelRecord
    from retinue.manager.store.postgres.database import Database

SHORTEST, LONGEST = dt.timedelta(seconds=1), dt.timedelta(hours=1)
DEFAULT_SECONDS = 2.0
MAX_KERNELS = 2000
# Seconds that an agent may take to answer.
ANSWER_SECONDS = 3.0


async def serve_stats(
    database: Database, forwarder: Forwarder, request: pb.StreamStatsRequest
) -> AsyncGenerator[pb.StreamStatsResponse, None]:
    """Serves one stream."""
    seconds = _interval(request)
    session_id: uuid.UUID | None = None
    if request.session:
        async with database.transaction() as tx:
            session_id = await find_session(tx, request.session)
    reader = StatsReader(forwarder.dialer)
    loop = asyncio.get_running_loop()
    due = loop.time()
    try:
        while True:
            running, over = await _running(database, session_id, request.hostname)
            locations = [
                AttemptLocation(kernel.agent_id, kernel.agent_address, attempt_id(kernel.kernel_id, kernel.epoch))
                for kernel in running
            ]
            found = await reader.read(locations, ANSWER_SECONDS)
            kernels = [
                _message(kernel, found.get(location.attempt_id))
                for kernel, location in zip(running, locations, strict=True)
            ]
            yield pb.StreamStatsResponse(kernels=kernels)
            if over:
                return
            # From one start to the next; what took longer than the interval is not made up for.
            due = max(due + seconds, loop.time())
            await asyncio.sleep(due - loop.time())
    finally:
        await reader.close()


def _interval(request: pb.StreamStatsRequest) -> float:
    """Seconds between two responses. Raises InvalidRequest."""
    violations = Violations()
    seconds = DEFAULT_SECONDS
    if request.HasField("interval"):
        seconds = violations.duration("interval", request.interval, SHORTEST, LONGEST).total_seconds()
    if request.hostname and not request.session:
        violations.add("hostname", "needs session")
    violations.raise_any()
    return seconds


async def _running(
    database: Database, session_id: uuid.UUID | None, hostname: str
) -> tuple[list[RunningKernelRecord], bool]:
    """Returns kernels that run, and whether none ever will again."""
    async with database.transaction() as tx:
        if session_id is None:
            return await attempts.read_running(tx, caller_visibility(), None, "", MAX_KERNELS), False
        session = (await sessions.read(tx, [session_id])).get(session_id)
        if session is None or session.state in ENDED_SESSION_STATES:
            return [], True
        return await attempts.read_running(tx, caller_visibility(), session_id, hostname, MAX_KERNELS), False


def _message(kernel: RunningKernelRecord, stats: agent_pb.AttemptStats | None) -> pb.KernelStats:
    return pb.KernelStats(
        session_id=str(kernel.session_id),
        session_name=kernel.session_name,
        hostname=kernel.hostname,
        agent=kernel.agent_id,
        usage=None if stats is None else stats.usage,
    )
