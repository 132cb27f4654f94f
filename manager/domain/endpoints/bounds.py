"""Checks the numbers of stored documents of endpoints: one out of bounds, which a hand or another version wrote, is
found when the document is read, and not where it divides by zero or overflows a field of a message. Pure.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.manager.domain.endpoints import measures
from retinue.manager.domain.endpoints.model import Affinity, RequestRate, RoutingPolicy
from retinue.manager.domain.endpoints.rollout import AbortOn, Amount, CanaryStep
from retinue.manager.domain.endpoints.scaling import Metric, Rate, ScalingPolicy
from retinue.manager.domain.endpoints.schedules import Schedule
from retinue.manager.domain.endpoints.spec import MAX_REPLICAS, ReplicaSpec
from retinue.manager.domain.session.probes import Probe, PublishedPort

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")

_MAX_MS = 32 * 86_400_000
_PORT, _SOME_PORT, _COUNT, _REPLICAS = (1, 65_535), (0, 65_535), (0, 2**31 - 1), (0, MAX_REPLICAS)
_TIME, _SOME_TIME, _PERCENT = (0, _MAX_MS), (1, _MAX_MS), (0, 10_000)
# Of each kind of document the fields that differ from any number of milliseconds. They allow whatever a request may
# ask for, and what cannot do harm.
_BOUNDS: Mapping[type, Mapping[str, tuple[int, int]]] = {
    ReplicaSpec: {"port": _PORT, "max_concurrency": _COUNT, "queue": _COUNT},
    PublishedPort: {"port": _PORT},
    Probe: {
        "port": _SOME_PORT,
        "min_status": _COUNT,
        "max_status": _COUNT,
        "failures": _COUNT,
        "successes": _COUNT,
        "period": _SOME_TIME,
        "timeout": _SOME_TIME,
    },
    ScalingPolicy: {
        "min": _REPLICAS,
        "max": (1, MAX_REPLICAS),
        "stable": _SOME_TIME,
        "burst": _SOME_TIME,
        "burst_percent": (1, 10_000),
        "tolerance_percent": _PERCENT,
        "fallback": _REPLICAS,
    },
    Rate: {"percent": _PERCENT, "step": _REPLICAS, "period": _SOME_TIME},
    Metric: {"target": (1, 10**15)},
    Schedule: {"replicas": _REPLICAS},
    Amount: {"number": _PERCENT, "percent": _PERCENT},
    CanaryStep: {"percent": (0, 100)},
    AbortOn: {"error_percent": (0, 100), "min_requests": _COUNT},
    RoutingPolicy: {"hold_limit": _COUNT},
    RequestRate: {"requests": _COUNT, "period_ms": _SOME_TIME},
    Affinity: {"lifetime_ms": _SOME_TIME},
}
_PLAIN_METRICS = {measures.CONCURRENCY, measures.REQUESTS_PER_SECOND, measures.QUEUE}
_METRICS_OF = {measures.UTILIZATION, measures.CUSTOM, measures.PROMETHEUS}
_QUANTILES = ("0.5", "0.9", "0.95", "0.99")


def checked(document: T) -> T:
    """Returns a document whose numbers and metrics are sound. Raises ValueError with the first that is not."""
    for part in _parts(document):
        bounds = _BOUNDS.get(type(part), {})
        for name, value in _fields(part):
            if isinstance(value, int) and not isinstance(value, bool):
                least, most = bounds.get(name, _TIME)
                if not least <= value <= most:
                    raise ValueError(f"{name} is not from {least} to {most}")
        if isinstance(part, Metric):
            _check_metric(part.name)
    return document


def _check_metric(name: str) -> None:
    source, _, detail = name.partition(":")
    known = (
        name in _PLAIN_METRICS
        or (source in _METRICS_OF and detail)
        or (source == measures.LATENCY and detail in _QUANTILES)
    )
    if not known:
        raise ValueError("it is scaled by no known metric")


def _parts(value: object) -> Iterator[object]:
    """Yields a document and all that it is made of."""
    if isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        for _, part in _fields(value):
            yield from _parts(part)


def _fields(document: Any) -> Iterator[tuple[str, object]]:
    return ((field.name, getattr(document, field.name)) for field in dataclasses.fields(document))
