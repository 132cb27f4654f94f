"""ListUsageSamples: what the kernels of a session have used over the last hour."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.agent_rpc.relay import AttemptLocation, Forwarder
from retinue.manager.agent_rpc.stats import read_samples
from retinue.manager.api.visibility import find_session
from retinue.manager.domain.session.attempts import attempt_id
from retinue.manager.server.fields import Violations
from retinue.manager.server.pages import open_page
from retinue.manager.store.placement import attempts
from retinue.manager.v1 import kernel_service_pb2 as pb

if TYPE_CHECKING:
    from retinue.manager.store.placement.attempts import RankedKernelRecord
    from retinue.manager.store.postgres.database import Database

_SHORTEST, _LONGEST = dt.timedelta(seconds=10), dt.timedelta(hours=1)
# A kernel has up to 30 kB of samples.
_MAX_KERNELS = 50
# Seconds that an agent may take to answer.
_ANSWER_SECONDS = 3.0


async def list_usage_samples(
    database: Database, forwarder: Forwarder, request: pb.ListUsageSamplesRequest
) -> pb.ListUsageSamplesResponse:
    """Returns a page of kernels of a session, each with the samples that its agent has kept."""
    violations = Violations()
    asked = agent_pb.ListUsageSamplesRequest()
    if request.HasField("since_time"):
        violations.timestamp("since_time", request.since_time)
        asked.since_time.CopyFrom(request.since_time)
    if request.HasField("interval"):
        violations.duration("interval", request.interval, _SHORTEST, _LONGEST)
        asked.interval.CopyFrom(request.interval)
    violations.raise_any()
    query = ["usage samples", request.session, request.hostname, *map(str, (asked.since_time, asked.interval))]
    page = open_page(request.page_size, request.page_token, query)
    size = min(page.size, _MAX_KERNELS)
    async with database.transaction() as tx:
        session_id = await find_session(tx, request.session)
        after = int(page.after[0]) if page.after else -1
        found = await attempts.read_ranked(tx, session_id, request.hostname, after, size + 1)
    if request.hostname and not found and not page.after:
        violations.add("hostname", "the session has no such kernel")
        violations.raise_any()
    shown = found[:size]
    answers = await read_samples(forwarder.dialer, filter(None, map(_location, shown)), asked, _ANSWER_SECONDS)
    messages = [_message(kernel, answers) for kernel in shown]
    kernels, token = page.close(messages, len(found), lambda position: [str(found[position].rank)])
    return pb.ListUsageSamplesResponse(kernels=kernels, next_page_token=token)


def _location(kernel: RankedKernelRecord) -> AttemptLocation | None:
    if kernel.epoch is None or kernel.agent_id is None or not kernel.agent_address:
        return None
    return AttemptLocation(kernel.agent_id, kernel.agent_address, attempt_id(kernel.kernel_id, kernel.epoch))


def _message(kernel: RankedKernelRecord, answers: dict[str, agent_pb.AttemptUsageSamples]) -> pb.KernelUsageSamples:
    location = _location(kernel)
    found = answers.get(location.attempt_id) if location is not None else None
    return pb.KernelUsageSamples(
        hostname=kernel.hostname,
        attempt=kernel.epoch or 0,
        agent=kernel.agent_id or "",
        samples=() if found is None else found.samples,
    )
