"""Shows requests of endpoints, and the router itself, to Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from retinue.router.statistics import (
    ANSWERS_PATH,
    LATENCY_PATH,
    LatencyTotals,
    RevisionCounts,
    parse_answers,
    parse_latencies,
)
from retinue.router.traffic import read_counts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from retinue.router.core.table import Endpoint
    from retinue.router.serving import Serving

_log = logging.getLogger(__name__)

_SECONDS = 8.0
_OF_REVISION, _OF_ENDPOINT = ("project", "endpoint", "revision"), ("project", "endpoint")
LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds; all are bounds that the engine counts by."""


class _Reading(NamedTuple):
    """What the engine said at one time."""

    counts: dict[tuple[str, int], RevisionCounts]
    latencies: dict[tuple[str, int], LatencyTotals]
    answers: dict[str, int]


class EndpointCollector(Collector):
    """Reads the engine's counts for each scrape, on the event loop of the router."""

    def __init__(self, serving: Serving, loop: asyncio.AbstractEventLoop) -> None:
        """`collect` is called in other threads than that of the loop."""
        self._serving = serving
        self._loop = loop
        self._history = LatencyHistory()

    def describe(self) -> Iterable[Metric]:
        """Returns the metrics without values."""
        return Families().all()

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics; those of requests have no values while the engine does not answer."""
        try:
            reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_SECONDS)
        except (OSError, TimeoutError, RuntimeError) as error:
            _log.debug("the engine's counts cannot be read: %s", error)
            reading = None
        families = Families()
        endpoints = dict(self._serving.table.endpoints)
        families.up.add_metric([], float(reading is not None))
        families.table.add_metric([], self._serving.revision)
        for key, held in sorted(self._serving.gate.held().items()):
            if (endpoint := endpoints.get(key)) is not None:
                families.held.add_metric([endpoint.project, endpoint.name], held)
        if reading is not None:
            families.add_counts(endpoints, reading.counts)
            families.add_latencies(endpoints, self._history.take(reading.latencies, endpoints))
            for name, count in sorted(reading.answers.items()):
                families.answers.add_metric([name], count)
        return families.all()

    async def _read(self) -> _Reading:
        counts, admin = await read_counts(self._serving), self._serving.engine.admin
        latencies = parse_latencies((await admin.get(LATENCY_PATH)).decode())
        return _Reading(counts, latencies, parse_answers((await admin.get(ANSWERS_PATH)).decode()))


class Families:
    """The metrics, and the values of one scrape."""

    def __init__(self) -> None:
        """Has no values."""
        self.active = GaugeMetricFamily("retinue_endpoint_active", "Requests in progress.", labels=_OF_REVISION)
        self.pending = GaugeMetricFamily(
            "retinue_endpoint_pending", "Requests that wait for a replica.", labels=_OF_REVISION
        )
        self.requests = CounterMetricFamily("retinue_endpoint_requests", "Requests so far.", labels=_OF_REVISION)
        self.errors = CounterMetricFamily("retinue_endpoint_errors", "Answers with 5xx so far.", labels=_OF_REVISION)
        self.held = GaugeMetricFamily("retinue_endpoint_held", "Requests that are held.", labels=_OF_ENDPOINT)
        self.seconds = HistogramMetricFamily(
            "retinue_endpoint_request_seconds",
            "Seconds from a request to the end of its answer, of requests that reached a replica.",
            labels=_OF_ENDPOINT,
        )
        self.answers = CounterMetricFamily(
            "retinue_router_answers",
            "Answers to clients by class of status, also those that the router gives itself.",
            labels=("class",),
        )
        self.up = GaugeMetricFamily("retinue_router_engine_up", "1 while Envoy answers, else 0.")
        self.table = GaugeMetricFamily("retinue_router_table_revision", "Table in force.")

    def all(self) -> Sequence[Metric]:
        """Returns all of them."""
        return list(vars(self).values())

    def add_counts(self, endpoints: Mapping[str, Endpoint], counts: Mapping[tuple[str, int], RevisionCounts]) -> None:
        """Adds the counts of revisions; those of endpoints that the table does not have are left out."""
        for (key, revision), found in sorted(counts.items()):
            if (endpoint := endpoints.get(key)) is not None:
                labels = [endpoint.project, endpoint.name, str(revision)]
                self.active.add_metric(labels, found.active)
                self.pending.add_metric(labels, found.pending)
                self.requests.add_metric(labels, found.requests)
                self.errors.add_metric(labels, found.errors)

    def add_latencies(self, endpoints: Mapping[str, Endpoint], latencies: Mapping[str, LatencyTotals]) -> None:
        """Adds the latencies of endpoints, which the table has."""
        for key, totals in sorted(latencies.items()):
            endpoint = endpoints[key]
            buckets = [(repr(bound), float(totals.counts.get(bound, 0))) for bound in LATENCY_BOUNDS]
            self.seconds.add_metric(
                [endpoint.project, endpoint.name], [*buckets, ("+Inf", float(totals.total))], totals.milliseconds / 1000
            )


class LatencyHistory:
    """Adds the latencies of an endpoint's revisions up. Sums never shrink, as Prometheus wants it, when a revision is
    gone or the engine was started again.
    """

    def __init__(self) -> None:
        """Has seen nothing."""
        self._last: Mapping[tuple[str, int], LatencyTotals] = {}
        self._past: dict[str, LatencyTotals] = {}

    def take(
        self, found: Mapping[tuple[str, int], LatencyTotals], endpoints: Mapping[str, Endpoint]
    ) -> dict[str, LatencyTotals]:
        """Takes what revisions have now; returns that of `endpoints`. Others are forgotten."""
        for key, before in self._last.items():
            if key not in found or found[key].total < before.total:
                self._past[key[0]] = self._past.get(key[0], LatencyTotals()) + before
        self._last = found
        self._past = {key: totals for key, totals in self._past.items() if key in endpoints}
        sums = dict(self._past)
        for (endpoint, _), totals in found.items():
            if endpoint in endpoints:
                sums[endpoint] = sums.get(endpoint, LatencyTotals()) + totals
        return sums


@contextlib.asynccontextmanager
async def showing_endpoints(serving: Serving) -> AsyncIterator[None]:
    """Shows the requests of endpoints while the block lasts."""
    collector = EndpointCollector(serving, asyncio.get_running_loop())
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)
