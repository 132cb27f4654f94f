"""Reads requests per revision and per replica out of what the engine's admin interface says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from retinue.router.core.names import cluster_name, parse_cluster_name
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
