"""Keeps what was measured of an endpoint over the last hours: a sample a minute, in little memory. Pure.

A sample is a row of integers in an array: 88 bytes, and 8 for each metric that has been there. Times are in
milliseconds, amounts in thousandths.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.domain.endpoints import measures

if TYPE_CHECKING:
    from retinue.manager.domain.endpoints.measures import Counters

INTERVAL_MS = 60_000
"""Between two samples."""
KEPT_SAMPLES = 360
"""Most samples of an endpoint: 6 hours."""
_MISSING = -1
# What routers and replicas say may be any number.
_LARGEST = 2**62
_MEDIAN, _P95 = 500, 950


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests and answers 5xx in thousandths a second, and latencies in ms; None for what is not known."""

    requests: int | None = None
    errors: int | None = None
    latency_p50: int | None = None
    latency_p95: int | None = None


@dataclass(frozen=True, slots=True)
class EndpointSample:
    """What was measured of an endpoint at a time, in milliseconds since 1970.

    `in_flight` is None while a router does not report; `recommendation` is how many replicas the metrics ask for, None
    before the first decision. `metrics` are the totals that are known, in thousandths; `rates` are those since the
    sample before.
    """

    time: int
    target: int
    ready: int
    starting: int
    held: int
    in_flight: int | None = None
    recommendation: int | None = None
    rates: Rates = Rates()
    metrics: Mapping[str, int] = field(default_factory=dict)


# Numbers of a sample before its metrics.
_COLUMNS = 11


class EndpointHistory:
    """The samples of one endpoint within a term."""

    def __init__(self) -> None:
        # By metric, in the order in which they came.
        self._metrics: dict[str, array[int]] = {}
        self._rows = array("q")

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self._rows) // _COLUMNS

    def add(self, sample: EndpointSample) -> None:
        """Adds a sample that is newer than those that there are."""
        number, rates = len(self), sample.rates
        given = (sample.time, sample.target, sample.ready, sample.starting, sample.held, sample.in_flight)
        found = (sample.recommendation, rates.requests, rates.errors, rates.latency_p50, rates.latency_p95)
        self._rows.extend(_MISSING if item is None else min(item, _LARGEST) for item in (*given, *found))
        for name in sample.metrics.keys() - self._metrics.keys():
            self._metrics[name] = array("q", [_MISSING] * number)
        for name, values in self._metrics.items():
            values.append(min(sample.metrics.get(name, _MISSING), _LARGEST))
        if number == KEPT_SAMPLES:
            del self._rows[:_COLUMNS]
            for values in self._metrics.values():
                del values[0]
        # Those that a policy no longer has, once all of their samples are gone.
        self._metrics = {name: values for name, values in self._metrics.items() if max(values) != _MISSING}

    def read(self, since: int = 0) -> Iterator[EndpointSample]:
        """Yields the samples from a time on, the oldest first."""
        for place in range(len(self)):
            row = self._rows[place * _COLUMNS : (place + 1) * _COLUMNS]
            if row[0] < since:
                continue
            in_flight, recommendation, *amounts = (None if item == _MISSING else item for item in row[5:])
            metrics = {name: values[place] for name, values in self._metrics.items() if values[place] != _MISSING}
            time, target, ready, starting, held = row[:5]
            yield EndpointSample(
                time, target, ready, starting, held, in_flight, recommendation, Rates(*amounts), metrics
            )


def rates(before: Counters | None, now: Counters | None) -> Rates:
    """Returns what came between two readings; nothing is known without one of them, or when a counter went back."""
    if before is None or now is None or now.at <= before.at:
        return Rates()
    requests, errors = now.requests - before.requests, now.errors - before.errors
    if requests < 0 or errors < 0:
        return Rates()
    buckets = measures.difference(before.buckets, now.buckets)
    elapsed = now.at - before.at
    return Rates(
        1_000_000 * requests // elapsed,
        1_000_000 * errors // elapsed,
        measures.quantile(buckets, _MEDIAN),
        measures.quantile(buckets, _P95),
    )
