"""Counts of requests, as the leader gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.router.statistics import (
    STATS_PATH,
    ReplicaCounts,
    RevisionCounts,
    parse_replicas,
    parse_stats,
    sessions_of,
)
from retinue.router.v1 import router_service_pb2 as pb
from retinue.rpc.times import duration

if TYPE_CHECKING:
    from retinue.router.serving import Serving


async def read_counts(serving: Serving) -> dict[tuple[str, int], RevisionCounts]:
    """Returns the counts per endpoint and revision, with what former engines still do.
    Raises OSError while one does not answer.
    """
    admin, *former = serving.engine.admins()
    counts = parse_stats((await admin.get(STATS_PATH)).decode())
    for other in former:
        for key, found in parse_stats((await other.get(STATS_PATH)).decode()).items():
            known = counts.setdefault(key, RevisionCounts())
            known.active += found.active
            known.pending += found.pending
    return counts


async def read_traffic(serving: Serving) -> pb.Traffic:
    """Returns all counts. Raises OSError while the engine does not answer."""
    counts = await read_counts(serving)
    endpoints = serving.table.endpoints.values()
    draining, watched = sessions_of(endpoints, draining=True), sessions_of(endpoints, draining=False)
    sessions = {**draining, **watched}
    replicas: dict[str, ReplicaCounts] = {}
    for admin in serving.engine.admins() if sessions else ():
        try:
            found = parse_replicas((await admin.get("/clusters?format=json")).decode(), sessions)
        except ValueError as error:
            raise OSError(f"the engine's clusters cannot be read: {error}") from error
        for key, counts_of in found.items():
            known = replicas.get(key, ReplicaCounts())
            replicas[key] = ReplicaCounts(known.active + counts_of.active, known.answered + counts_of.answered)
    return pb.Traffic(
        complete=True,
        epoch=serving.engine.epoch,
        revisions=[_revision(key, found) for key, found in sorted(counts.items())],
        held=[pb.HeldRequests(endpoint_id=key, count=count) for key, count in sorted(serving.gate.held().items())],
        draining=[pb.ReplicaTraffic(session_id=key, active=replicas[key].active) for key in sorted(draining.values())],
        watched=[
            pb.ReplicaTraffic(session_id=key, active=replicas[key].active, answered=replicas[key].answered)
            for key in sorted(watched.values())
        ],
    )


def _revision(key: tuple[str, int], counts: RevisionCounts) -> pb.RevisionTraffic:
    return pb.RevisionTraffic(
        endpoint_id=key[0],
        revision=key[1],
        active=counts.active,
        pending=counts.pending,
        requests=counts.requests,
        errors=counts.errors,
        buckets=[pb.LatencyBucket(upper_bound=duration(bound / 1000), count=count) for bound, count in counts.buckets],
    )
