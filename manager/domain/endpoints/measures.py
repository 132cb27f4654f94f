"""Turns what routers report into what the autoscaler sees. Pure; times in milliseconds, amounts in thousandths.

Counters become rates by their difference to the reading before. One that went back, as a router went away,
gives no sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.domain.endpoints.scaling import Metric, Reading

if TYPE_CHECKING:
    from retinue.manager.domain.endpoints.model import EndpointTraffic, RevisionTraffic

CONCURRENCY, REQUESTS_PER_SECOND, QUEUE, LATENCY = "concurrency", "requests_per_second", "queue", "latency"
# Of the replicas, and of a query; the rest of the name says of what.
UTILIZATION, CUSTOM, PROMETHEUS = "utilization", "custom", "prometheus"
# What is shown by replicas and queries is anyone's number: more than this is as good as this.
_MAX_AMOUNT = 10**15


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of an endpoint at a time, over all its revisions."""

    at: int
    requests: int = 0
    errors: int = 0
    buckets: Mapping[int, int] = field(default_factory=dict)


def counters(traffic: EndpointTraffic, at: int) -> Counters:
    """Adds the counters of all revisions up."""
    buckets: dict[int, int] = {}
    for revision in traffic.revisions.values():
        for bound, number in revision.latency_buckets:
            buckets[bound] = buckets.get(bound, 0) + number
    values = traffic.revisions.values()
    return Counters(at, sum(item.requests for item in values), sum(item.errors for item in values), buckets)


def in_flight(traffic: EndpointTraffic) -> int:
    """Returns the requests on replicas and those that wait for one."""
    return sum(item.in_flight + item.pending for item in traffic.revisions.values())


def reading(
    metric: Metric, traffic: EndpointTraffic, before: Counters | None, now: Counters, *, missing: int
) -> Reading | None:
    """Returns a metric of the routers; None for one of another source,
    and without a reading before where it takes two.
    """
    name, _, detail = metric.name.partition(":")
    if name == CONCURRENCY:
        return Reading(1_000 * (in_flight(traffic) + traffic.held), missing)
    if name == QUEUE:
        return Reading(1_000 * (sum(item.pending for item in traffic.revisions.values()) + traffic.held), missing)
    if before is None or now.at <= before.at:
        return None
    if name == REQUESTS_PER_SECOND:
        begun = now.requests - before.requests
        return Reading(1_000_000 * begun // (now.at - before.at), missing) if begun >= 0 else None
    if name == LATENCY:
        slowest = quantile(difference(before.buckets, now.buckets), int(1_000 * float(detail or "0.95")))
        return None if slowest is None else Reading(1_000 * slowest, missing)
    return None


def of_replicas(values: Sequence[float | None], *, asleep: bool = False) -> Reading | None:
    """Returns the sum over replicas of what each of them has; None when it is known of none of them.
    One that is asleep bears nothing.
    """
    known = [value for value in values if value is not None]
    if not known and not (asleep and not values):
        return None
    return Reading(sum(map(thousandths, known)), len(values) - len(known))


def of_query(value: float | None) -> Reading | None:
    """Returns the result of a query; None while it is not known."""
    return None if value is None else Reading(thousandths(value))


def thousandths(value: float) -> int:
    """Returns a number in thousandths, within what can be added up and stored."""
    return round(1_000 * min(max(value, 0.0), _MAX_AMOUNT / 1_000))


def difference(before: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    """Returns how many answers came per bucket since; empty when a counter went back."""
    found = {bound: number - before.get(bound, 0) for bound, number in now.items()}
    return {} if any(number < 0 for number in found.values()) else found


def quantile(buckets: Mapping[int, int], thousandths: int) -> int | None:
    """Returns the upper bound in ms of the bucket that a quantile falls in; None without answers."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = -(-buckets[bounds[-1]] * thousandths // 1_000)
    return next(bound for bound in bounds if buckets[bound] >= rank)


def since(now: RevisionTraffic, begin: RevisionTraffic | None) -> tuple[int, int]:
    """Returns the answers of a revision, and the errors among them, since an earlier reading."""
    if begin is None or now.requests < begin.requests or now.errors < begin.errors:
        return now.requests, now.errors
    return now.requests - begin.requests, now.errors - begin.errors
