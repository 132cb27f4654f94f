"""Adds up what routers measure. What one of them has not said makes the sums partial;
one that is silent no longer counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from retinue.manager.domain.endpoints.model import EndpointTraffic, RevisionTraffic, Traffic

LIVE_SECONDS = 15.0
"""A router that was silent for longer is not waited for, and its requests no longer count."""
STALE_SECONDS = 5.0
"""Measurements that are older are missing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a router said last, and when: counts per revision, requests held, and requests on replicas that drain."""

    heard: float
    measured: float | None = None
    acknowledged: int = 0
    revisions: Mapping[tuple[uuid.UUID, int], RevisionTraffic] = field(default_factory=dict)
    held: Mapping[uuid.UUID, int] = field(default_factory=dict)
    draining: Mapping[uuid.UUID, int] = field(default_factory=dict)
    answered: Mapping[uuid.UUID, int] = field(default_factory=dict)


def summed(readings: Iterable[Reading], *, newest: int, now: float) -> Traffic:
    """Returns what is known at `now` of all routers; `newest` is the revision of the table."""
    heard = list(readings)
    live = [reading for reading in heard if now - reading.heard <= LIVE_SECONDS]
    known = [found for found in live if found.measured is not None and now - found.measured <= STALE_SECONDS]
    revisions: dict[uuid.UUID, dict[int, RevisionTraffic]] = {}
    held: dict[uuid.UUID, int] = {}
    for reading in known:
        for (endpoint_id, number), counts in reading.revisions.items():
            numbers = revisions.setdefault(endpoint_id, {})
            numbers[number] = _added(numbers.get(number, RevisionTraffic()), counts)
    for reading in live:
        # What is held is said at once, before the next measurement.
        for endpoint_id, count in reading.held.items():
            held[endpoint_id] = held.get(endpoint_id, 0) + count
    endpoints = {
        key: EndpointTraffic(held.get(key, 0), revisions.get(key, {})) for key in revisions.keys() | held.keys()
    }
    return Traffic(
        live=len(live),
        silent=len(heard) - len(live),
        missing=len(live) - len(known),
        acknowledged=min((reading.acknowledged for reading in live), default=newest),
        current=sum(reading.acknowledged == newest for reading in live),
        endpoints=endpoints,
        draining=_draining(live, known),
        answered=_sums(reading.answered for reading in known),
    )


def _sums(parts: Iterable[Mapping[uuid.UUID, int]]) -> dict[uuid.UUID, int]:
    found: dict[uuid.UUID, int] = {}
    for part in parts:
        for key, count in part.items():
            found[key] = found.get(key, 0) + count
    return found


def _draining(live: list[Reading], known: list[Reading]) -> dict[uuid.UUID, int]:
    """Returns requests by session; a session that a live router has not reported on is not there."""
    sessions = {session for reading in known for session in reading.draining}
    if len(live) != len(known):
        return {}
    complete = (key for key in sessions if all(key in reading.draining for reading in known))
    return {key: sum(reading.draining[key] for reading in known) for key in complete}


def _added(first: RevisionTraffic, second: RevisionTraffic) -> RevisionTraffic:
    buckets = dict(first.latency_buckets)
    for bound, count in second.latency_buckets:
        buckets[bound] = buckets.get(bound, 0) + count
    return RevisionTraffic(
        first.in_flight + second.in_flight,
        first.pending + second.pending,
        first.requests + second.requests,
        first.errors + second.errors,
        tuple(sorted(buckets.items())),
    )


def rising(before: RevisionTraffic, latest: RevisionTraffic, base: RevisionTraffic) -> RevisionTraffic:
    """Returns counts that never fall: `base` has what was counted before the engine's last start,
    `before` the sum so far.
    """
    added = _added(base, latest)
    return RevisionTraffic(
        latest.in_flight,
        latest.pending,
        max(before.requests, added.requests),
        max(before.errors, added.errors),
        added.latency_buckets,
    )
