"""What is to be seen of an endpoint now: why there are as many replicas as there are,
and its numbers over each interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from typing import TYPE_CHECKING

from retinue.manager.api.endpoints.convert import (
    bounded,
    decision_message,
    endpoint_message,
    listed_revision,
    replica_message,
    thousandths,
)
from retinue.manager.api.endpoints.requests import find_endpoint, read_endpoint, shown_endpoint
from retinue.manager.api.visibility import full_view
from retinue.manager.domain import errors
from retinue.manager.domain.endpoints import measures
from retinue.manager.domain.endpoints.history import INTERVAL_MS, KEPT_SAMPLES, EndpointSample
from retinue.manager.domain.endpoints.model import EndpointTraffic, RevisionTraffic
from retinue.manager.domain.endpoints.replicas import ready_counts
from retinue.manager.domain.endpoints.states import ReplicaState
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.endpoints.fleet import EndpointView, UnreadableEndpointError
from retinue.manager.server.fields import Violations
from retinue.manager.store.endpoints import endpoint_replicas, endpoints
from retinue.manager.store.leadership import leadership
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.rpc.times import milliseconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from retinue.manager.domain.endpoints.scaling import Decision
    from retinue.manager.endpoints.controller import EndpointController
    from retinue.manager.store.postgres.database import Database, Transaction

# Of the output of a replica that failed.
_OUTPUT_BYTES = 4_096
_FAILED_SHOWN, _CHANGES_SHOWN = 5, 20
_DEFAULT_SECONDS = 2.0
_SHORTEST, _LONGEST = dt.timedelta(seconds=1), dt.timedelta(seconds=60)
_MEDIAN, _P95 = 500, 950
_HISTORY = dt.timedelta(milliseconds=INTERVAL_MS * KEPT_SAMPLES)
_DECISIONS_SHOWN = 200


async def explain(
    tx: Transaction, view: EndpointView, controller: EndpointController | None, domain: str
) -> pb.ExplainEndpointResponse:
    """Returns the answer; without a `controller`, at a manager that does not lead, only what is stored."""
    record = view.record
    found = await endpoint_replicas.read(tx, [record.id], gone=_FAILED_SHOWN)
    replicas = found.get(record.id, [])
    failed = [item for item in replicas if not item.was_ready and item.state is ReplicaState.GONE]
    output = b""
    if failed:
        output = await endpoint_replicas.read_last_output(tx, failed[-1].session_id, _OUTPUT_BYTES)
    changes = await endpoints.read_decisions(tx, record.id, _CHANGES_SHOWN)
    response = pb.ExplainEndpointResponse(
        endpoint=await shown_endpoint(tx, view, domain),
        changes=_changes(changes),
        replicas=[replica_message(item) for item in replicas],
        revisions=[listed_revision(item, full_view(record.owner), replicas) for item in record.revisions],
        failure_output=output.decode(errors="replace"),
    )
    if controller is None:
        response.leader = await leadership.read_holder(tx)
        return response
    traffic = controller.traffic()
    response.routers, response.routers_current = traffic.live, traffic.current
    if (decision := controller.last_decision(record.id)) is not None:
        response.last_decision.CopyFrom(decision_message(decision, await endpoints.read_clock(tx)))
    return response


def _changes(decisions: Iterable[tuple[Decision, dt.datetime]]) -> list[epb.ScalingDecision]:
    """Returns the decisions that can be read."""
    found = []
    for decision, made_at in decisions:
        with contextlib.suppress(UnreadableEndpointError):
            found.append(decision_message(decision, made_at))
    return found


async def stream_stats(
    database: Database, controller: Callable[[], EndpointController | None], request: pb.StreamEndpointStatsRequest
) -> AsyncGenerator[pb.StreamEndpointStatsResponse, None]:
    """Serves one stream; it ends when another manager leads."""
    seconds = _DEFAULT_SECONDS
    if request.HasField("interval"):
        violations = Violations()
        seconds = violations.duration("interval", request.interval, _SHORTEST, _LONGEST).total_seconds()
        violations.raise_any()
    async with database.transaction() as tx:
        endpoint_id = (await find_endpoint(tx, request.endpoint)).record.id
    before: EndpointTraffic | None = None
    began = time.monotonic()
    while True:
        leading = await _leading(database, controller)
        traffic = leading.traffic()
        async with database.transaction() as tx:
            view = await read_endpoint(tx, endpoint_id)
            now = await endpoints.read_clock(tx)
        of_endpoint = traffic.endpoints.get(endpoint_id, EndpointTraffic())
        shown = endpoint_message(view, now, SpecView.BASIC)
        elapsed = max(0.001, time.monotonic() - began)
        began = time.monotonic()
        response = pb.StreamEndpointStatsResponse(
            state=shown.state,
            target=shown.target,
            ready_replicas=shown.ready_replicas,
            held=bounded(of_endpoint.held),
            revisions=_revisions(view, now, before, of_endpoint, elapsed),
            routers=traffic.live,
            routers_missing=traffic.missing,
        )
        response.time.FromDatetime(now)
        yield response
        before = of_endpoint
        await asyncio.sleep(seconds)


async def _leading(database: Database, controller: Callable[[], EndpointController | None]) -> EndpointController:
    """Returns the controller of this manager. Raises Unavailable when another leads."""
    leading = controller()
    if leading is None:
        async with database.transaction() as tx:
            holder = await leadership.read_holder(tx)
        raise errors.Unavailable(f"this manager does not lead: ask {holder or 'another'}")
    return leading


async def read_history(
    database: Database, controller: Callable[[], EndpointController | None], request: pb.GetEndpointHistoryRequest
) -> pb.GetEndpointHistoryResponse:
    """Returns the samples of this term, and what decided the targets."""
    violations = Violations()
    since = violations.timestamp("since_time", request.since_time) if request.HasField("since_time") else None
    violations.raise_any()
    async with database.transaction() as tx:
        endpoint_id = (await find_endpoint(tx, request.endpoint)).record.id
        now = await endpoints.read_clock(tx)
        found = await endpoints.read_decisions(tx, endpoint_id, _DECISIONS_SHOWN)
    if since is None:
        since = now - _HISTORY
    leading = await _leading(database, controller)
    samples = leading.history(endpoint_id, int(since.timestamp() * 1_000))
    decisions = [(decision, made_at) for decision, made_at in reversed(found) if made_at >= since]
    return pb.GetEndpointHistoryResponse(samples=map(_sample, samples), decisions=_changes(decisions))


def _sample(sample: EndpointSample) -> pb.EndpointSample:
    rates = sample.rates
    message = pb.EndpointSample(
        target=sample.target,
        ready_replicas=sample.ready,
        starting_replicas=sample.starting,
        recommendation=None if sample.recommendation is None else bounded(sample.recommendation),
        metrics={name: thousandths(total) for name, total in sample.metrics.items()},
        held=bounded(sample.held),
        in_flight=None if sample.in_flight is None else bounded(sample.in_flight),
        requests_per_second=None if rates.requests is None else rates.requests / 1_000,
        errors_per_second=None if rates.errors is None else rates.errors / 1_000,
        latency_p50=None if rates.latency_p50 is None else milliseconds(rates.latency_p50),
        latency_p95=None if rates.latency_p95 is None else milliseconds(rates.latency_p95),
    )
    message.time.FromMilliseconds(sample.time)
    return message


def _revisions(
    view: EndpointView, now: dt.datetime, before: EndpointTraffic | None, traffic: EndpointTraffic, elapsed: float
) -> list[pb.RevisionStats]:
    ready = ready_counts(view.fleet(now).replicas)
    found = []
    for record in view.record.revisions:
        this = traffic.revisions.get(record.number, RevisionTraffic())
        last = this if before is None else before.revisions.get(record.number, RevisionTraffic())
        requests, wrong = measures.since(this, last)
        buckets = measures.difference(dict(last.latency_buckets), dict(this.latency_buckets))
        message = pb.RevisionStats(
            revision=record.number,
            ready_replicas=ready.get(record.number, 0),
            in_flight=bounded(this.in_flight),
            pending=bounded(this.pending),
            requests_per_second=requests / elapsed,
            errors_per_second=wrong / elapsed,
        )
        for field, quantile in ((message.latency_p50, _MEDIAN), (message.latency_p95, _P95)):
            if (slowest := measures.quantile(buckets, quantile)) is not None:
                field.CopyFrom(milliseconds(slowest))
        found.append(message)
    return found
