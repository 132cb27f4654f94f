"""Reads requests per revision and per replica out of what the engine's admin interface says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from retinue.router.core.names import cluster_name, parse_cluster_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retinue.router.core.table import Endpoint

STATS_PATH = (
    "/stats?histogram_buckets=cumulative&filter="
    "%5Ecluster%5C.%5B0-9a-f-%5D%2B%2F%5B0-9%5D%2B%5C."
    "upstream_rq_%28active%7Cpending_active%7Ccompleted%7C5xx%7Ctime%29%24"
)
"""Asks for what is read here, by
`^cluster\\.[0-9a-f-]+/[0-9]+\\.upstream_rq_(active|pending_active|completed|5xx|time)$`.
"""
_LINE = re.compile(r"cluster\.([0-9a-f-]+/\d+)\.upstream_rq_(\w+): (.*)")
_BUCKET = re.compile(r"B([0-9.e+]+)\(\d+,(\d+)\)")


LATENCY_PATH = "/stats/prometheus?filter=%5Ecluster%5C.%5B0-9a-f-%5D%2B%2F%5B0-9%5D%2B%5C.upstream_rq_time%24"
"""Asks for latencies with their sums, by `^cluster\\.[0-9a-f-]+/[0-9]+\\.upstream_rq_time$`."""
ANSWERS_PATH = "/stats?filter=%5Ehttp%5C.clients%5C.downstream_rq_%5B1-5%5Dxx%24"
"""Asks for answers to clients by class, by `^http\\.clients\\.downstream_rq_[1-5]xx$`."""
_LATENCY = re.compile(
    r'envoy_cluster_upstream_rq_time_(bucket|sum|count)\{envoy_cluster_name="([0-9a-f-]+/\d+)"(?:,le="([0-9.e+]+)")?\} ([0-9.e+]+)'
)
_ANSWERS = re.compile(r"http\.clients\.downstream_rq_([1-5]xx): (\d+)")


@dataclass(frozen=True, slots=True)
class LatencyTotals:
    """Requests that ended within so many seconds, by these; all of them, and the sum of their milliseconds."""

    counts: Mapping[float, int] = field(default_factory=dict)
    total: int = 0
    milliseconds: float = 0.0

    def __add__(self, other: LatencyTotals) -> LatencyTotals:
        """Returns the totals of both."""
        counts = {
            bound: self.counts.get(bound, 0) + other.counts.get(bound, 0)
            for bound in self.counts.keys() | other.counts.keys()
        }
        return LatencyTotals(counts, self.total + other.total, self.milliseconds + other.milliseconds)


def parse_latencies(text: str) -> dict[tuple[str, int], LatencyTotals]:
    """Returns the latencies by endpoint and revision; lines that are nothing of it are passed over."""
    counts: dict[tuple[str, int], dict[float, int]] = {}
    sums: dict[tuple[str, int], float] = {}
    totals: dict[tuple[str, int], int] = {}
    for line in text.splitlines():
        match = _LATENCY.fullmatch(line)
        key = None if match is None else parse_cluster_name(match[2])
        if match is None or key is None:
            continue
        kind, bound, value = match[1], match[3], float(match[4])
        if kind == "sum":
            sums[key] = value
        elif kind == "count":
            totals[key] = int(value)
        elif bound:
            counts.setdefault(key, {})[float(bound) / 1000] = int(value)
    return {key: LatencyTotals(counts.get(key, {}), total, sums.get(key, 0.0)) for key, total in totals.items()}


def parse_answers(text: str) -> dict[str, int]:
    """Returns answers to clients by class, as `2xx`; lines that are nothing of it are passed over."""
    return {match[1]: int(match[2]) for line in text.splitlines() if (match := _ANSWERS.fullmatch(line))}


@dataclass(slots=True)
class RevisionCounts:
    """Requests of a revision: in progress and waiting now, and so far, of those 5xx, and by milliseconds at most."""

    active: int = 0
    pending: int = 0
    requests: int = 0
    errors: int = 0
    buckets: list[tuple[float, int]] = field(default_factory=list)


def parse_stats(text: str) -> dict[tuple[str, int], RevisionCounts]:
    """Returns the counts by endpoint and revision; lines that are nothing of it are passed over."""
    found: dict[tuple[str, int], RevisionCounts] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        key = None if match is None else parse_cluster_name(match[1])
        if match is None or key is None:
            continue
        counts = found.setdefault(key, RevisionCounts())
        name, value = match[2], match[3]
        if name == "time":
            counts.buckets = [(float(bound), int(count)) for bound, count in _BUCKET.findall(value)]
        elif value.isdecimal():
            match name:
                case "active":
                    counts.active = int(value)
                case "pending_active":
                    counts.pending = int(value)
                case "completed":
                    counts.requests = int(value)
                case "5xx":
                    counts.errors = int(value)
    return found


@dataclass(slots=True)
class ReplicaCounts:
    """Requests on a replica: in progress now, and answered so far, but with 5xx."""

    active: int = 0
    answered: int = 0


Place: TypeAlias = tuple[str, str, int]


def sessions_of(endpoints: Iterable[Endpoint], *, draining: bool) -> dict[Place, str]:
    """Returns the sessions of replicas that drain, or of those of revisions that are watched, by cluster,
    address and port.
    """
    return {
        (cluster_name(endpoint.id, revision.number), replica.address, replica.port): replica.session_id
        for endpoint in endpoints
        for revision in endpoint.revisions
        for replica in revision.replicas
        if (replica.draining if draining else revision.watched)
    }


def parse_replicas(text: str, sessions: Mapping[Place, str]) -> dict[str, ReplicaCounts]:
    """Returns requests by session, from `/clusters?format=json`. Raises ValueError."""
    found = {session: ReplicaCounts() for session in sessions.values()}
    for cluster in json.loads(text).get("cluster_statuses", ()):
        for host in cluster.get("host_statuses", ()):
            place = host.get("address", {}).get("socket_address", {})
            key = cluster.get("name", ""), place.get("address", ""), place.get("port_value", 0)
            if key in sessions:
                counts = found[sessions[key]]
                for statistic in host.get("stats", ()):
                    match statistic.get("name"):
                        case "rq_active":
                            counts.active += int(statistic.get("value", 0))
                        case "rq_success":
                            counts.answered += int(statistic.get("value", 0))
    return found
