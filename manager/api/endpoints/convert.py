"""Endpoints as stored, as messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from retinue.manager.api.sessions.convert import conditions
from retinue.manager.api.sessions.spec_convert import spec_message
from retinue.manager.dispatch.probe_messages import probe_message
from retinue.manager.domain.endpoints import measures
from retinue.manager.domain.endpoints.model import AccessPolicy, Algorithm, HashSource, RoutingPolicy
from retinue.manager.domain.endpoints.observation import endpoint_state
from retinue.manager.domain.endpoints.rollout import BlueGreen, Canary, Rolling, RolloutPolicy, effective_shares
from retinue.manager.domain.endpoints.states import FINISHED_ROLLOUTS, SERVING, ReplicaState
from retinue.manager.endpoints.fleet import (
    EndpointView,
    UnreadableEndpointError,
    observed_state,
    readable,
    reading,
    rollout_of,
)
from retinue.manager.server.etags import etag
from retinue.manager.v1 import endpoint_pb2 as pb
from retinue.manager.v1 import session_pb2
from retinue.rpc.times import milliseconds, timestamp
from retinue.types.v1 import cors_pb2

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from retinue.manager.domain.endpoints.scaling import Decision, Rate
    from retinue.manager.domain.endpoints.spec import EndpointSettings, ReplicaSpec, RevisionSpec
    from retinue.manager.domain.session.spec_views import SpecView
    from retinue.manager.store.endpoints.endpoint_replicas import ReplicaRecord
    from retinue.manager.store.endpoints.endpoint_revisions import RevisionRecord
    from retinue.manager.store.endpoints.endpoint_rollouts import RolloutRecord
    from retinue.manager.store.endpoints.endpoints import FloorRecord

_log = logging.getLogger(__name__)


@reading()
def endpoint_message(view: EndpointView, now: dt.datetime, spec_view: SpecView, *, url: str = "") -> pb.Endpoint:
    """Returns an endpoint with so much of its newest revision's request. Raises UnreadableEndpointError."""
    record = view.record
    rollout = rollout_of(view.rollout)
    fleet = view.fleet(now)
    shares = effective_shares(fleet, rollout)
    newest = view.revisions.get(record.newest_revision)
    short = None if record.short_time is None else int((now - record.short_time).total_seconds() * 1_000)
    state = endpoint_state(
        record.lifecycle,
        target=record.target,
        ready=view.ready,
        was_ready=record.first_ready_time is not None,
        updating=rollout is not None and rollout.is_running,
        short_ms=short,
    )
    return pb.Endpoint(
        id=str(record.id),
        spec=settings_message(
            view.settings,
            name=record.name,
            project=record.project,
            revision=None if newest is None else revision_spec_message(newest, spec_view),
        ),
        owner=record.owner,
        host_label=record.host_label,
        url=url,
        state=pb.EndpointState.Value(f"ENDPOINT_STATE_{state}"),
        conditions=conditions(record.conditions),
        target=record.target,
        target_reason=record.target_reason,
        ready_replicas=view.ready,
        replicas=view.live,
        traffic=[
            pb.RevisionShare(revision=item.number, percent=item.percent, effective_percent=shares.get(item.number, 0))
            for item in record.revisions
            if item.percent or shares.get(item.number)
        ],
        newest_revision=record.newest_revision,
        rollout=None if view.rollout is None else rollout_message(view.rollout),
        scaling_floor=None if record.floor is None else floor_message(record.floor),
        etag=etag(record.version),
        create_time=timestamp(record.create_time),
    )


def settings_message(
    settings: EndpointSettings, *, name: str = "", project: str = "", revision: pb.RevisionSpec | None = None
) -> pb.EndpointSpec:
    """Returns what is asked for, defaults included."""
    return pb.EndpointSpec(
        name=name,
        project=project,
        revision=revision,
        scaling=_scaling(settings),
        routing=_routing(settings.routing),
        access=_access(settings.access),
        rollout=_rollout_spec(settings.rollout),
        labels=settings.labels,
    )


@reading()
def revision_message(record: RevisionRecord, view: SpecView, replicas: Sequence[ReplicaRecord]) -> pb.Revision:
    """Returns a revision with so much of its request. Raises UnreadableEndpointError."""
    states = [observed_state(item) for item in replicas if item.revision == record.number]
    return pb.Revision(
        number=record.number,
        spec=revision_spec_message(readable(record.spec), view),
        image_digests={reference: image[0] or image[1] for reference, image in record.found_images.items()},
        failures=record.failures,
        retry_time=timestamp(record.retry_time),
        author=record.author,
        create_time=timestamp(record.create_time),
        replicas=sum(state in SERVING for state in states),
        ready_replicas=states.count(ReplicaState.READY),
        serve_time=timestamp(record.serve_time),
    )


def listed_revision(record: RevisionRecord, view: SpecView, replicas: Sequence[ReplicaRecord]) -> pb.Revision:
    """Returns a revision as a list shows it; of one that cannot be read, what is known of it without."""
    try:
        return revision_message(record, view, replicas)
    except UnreadableEndpointError as error:
        _log.error("revision %d of endpoint %s is shown in part: %s", record.number, record.endpoint_id, error)
        return pb.Revision(number=record.number, author=record.author, create_time=timestamp(record.create_time))


def revision_spec_message(spec: RevisionSpec, view: SpecView) -> pb.RevisionSpec:
    """Returns what the replicas of a revision are."""
    session = spec_message(spec.session, view)
    for field in ("name", "project", "endpoint"):
        session.ClearField(field)
    return _replica_spec(spec.replica, session)


def _replica_spec(spec: ReplicaSpec, session: session_pb2.SessionSpec) -> pb.RevisionSpec:
    return pb.RevisionSpec(
        session=session,
        port=spec.port,
        protocol=pb.AppProtocol.Value(f"APP_PROTOCOL_{spec.protocol}"),
        startup=None if spec.startup is None else probe_message(spec.startup),
        readiness=None if spec.readiness is None else probe_message(spec.readiness),
        liveness=None if spec.liveness is None else probe_message(spec.liveness),
        max_concurrency=spec.max_concurrency,
        queue=spec.queue,
        start_timeout=milliseconds(spec.start_timeout),
        drain_timeout=milliseconds(spec.drain_timeout),
        metrics_path=spec.metrics_path,
    )


def _scaling(settings: EndpointSettings) -> pb.ScalingPolicy:
    policy = settings.scaling
    return pb.ScalingPolicy(
        min=policy.min,
        max=policy.max,
        metrics=[] if settings.default_metric else [metric_message(item.name, item.target) for item in policy.metrics],
        stable_window=milliseconds(policy.stable),
        burst_window=milliseconds(policy.burst),
        hold_up=milliseconds(policy.hold_up),
        hold_down=milliseconds(policy.hold_down),
        idle_after=milliseconds(policy.idle_after),
        burst_percent=policy.burst_percent,
        tolerance_percent=policy.tolerance_percent,
        up=_rate(policy.up),
        down=_rate(policy.down),
        schedules=[
            pb.ScalingSchedule(
                cron=item.cron,
                time_zone=item.time_zone,
                duration=milliseconds(item.duration),
                replicas=item.replicas,
            )
            for item in settings.schedules
        ],
        fallback_replicas=policy.fallback,
    )


def metric_message(name: str, target: int) -> pb.ScalingMetric:
    """Returns a metric by its name; `target` is in thousandths."""
    source, _, detail = name.partition(":")
    message = pb.ScalingMetric(target=thousandths(target))
    match source:
        case measures.LATENCY:
            message.latency.quantile = float(detail)
        case measures.UTILIZATION:
            message.utilization.slot = detail
        case measures.CUSTOM:
            message.custom.name = detail
        case measures.PROMETHEUS:
            message.prometheus.query = detail
        case _:
            getattr(message, source).SetInParent()
    return message


def _rate(rate: Rate) -> pb.ScalingRate:
    return pb.ScalingRate(percent=rate.percent, step=rate.step, period=milliseconds(rate.period))


def _routing(policy: RoutingPolicy) -> pb.RoutingPolicy:
    message = pb.RoutingPolicy(
        algorithm=pb.RoutingAlgorithm.Value(f"ROUTING_ALGORITHM_{policy.algorithm}"),
        request_timeout=milliseconds(policy.request_timeout_ms),
        idle_timeout=milliseconds(policy.idle_timeout_ms),
        hold_timeout=milliseconds(policy.hold_timeout_ms),
        hold_limit=policy.hold_limit,
        retry_idempotent=policy.retry_idempotent,
        hosts=policy.hosts,
    )
    if policy.algorithm is Algorithm.HASH:
        match policy.hash_source:
            case HashSource.HEADER:
                message.hash_key.header = policy.hash_name
            case HashSource.COOKIE:
                message.hash_key.cookie = policy.hash_name
            case HashSource.CLIENT_ADDRESS:
                message.hash_key.client_address = True
    if policy.algorithm is Algorithm.PICKER:
        message.picker.address, message.picker.ca = policy.picker_address, policy.picker_ca
    if policy.affinity is not None:
        message.affinity.cookie = policy.affinity.cookie
        message.affinity.lifetime.CopyFrom(milliseconds(policy.affinity.lifetime_ms))
    if policy.cors is not None:
        cors = policy.cors
        message.cors.CopyFrom(
            cors_pb2.Cors(
                origins=cors.origins,
                methods=cors.methods,
                headers=cors.headers,
                credentials=cors.credentials,
                max_age=milliseconds(cors.max_age_ms),
            )
        )
    return message


def _access(policy: AccessPolicy) -> pb.AccessPolicy:
    message = pb.AccessPolicy(
        mode=pb.AccessMode.Value(f"ACCESS_MODE_{policy.mode}"), source_ranges=policy.source_ranges
    )
    if policy.per_token is not None:
        message.per_token.requests = policy.per_token.requests
        message.per_token.period.CopyFrom(milliseconds(policy.per_token.period_ms))
    return message


def _rollout_spec(policy: RolloutPolicy) -> pb.RolloutSpec:
    message = pb.RolloutSpec(progress_timeout=milliseconds(policy.progress_timeout))
    match policy.strategy:
        case Rolling(surge, unavailable):
            for name, amount in (("max_surge", surge), ("max_unavailable", unavailable)):
                text = f"{amount.percent}%" if amount.percent else str(amount.number)
                setattr(message.rolling, name, text)
        case BlueGreen(keep_old, automatic):
            message.blue_green.keep_old.CopyFrom(milliseconds(keep_old))
            message.blue_green.automatic = automatic
        case Canary(steps):
            message.canary.SetInParent()
            for step in steps:
                hold = None if step.hold is None else milliseconds(step.hold)
                message.canary.steps.add(percent=step.percent, hold=hold)
    if policy.abort_on is not None:
        message.abort_on.error_percent = policy.abort_on.error_percent
        message.abort_on.min_requests = policy.abort_on.min_requests
    return message


def rollout_message(record: RolloutRecord) -> pb.Rollout:
    """Returns a rollout; its step is the number of changes of shares, of which the first is step 0."""
    step = record.step if record.state in FINISHED_ROLLOUTS else max(0, record.step - 1)
    return pb.Rollout(
        from_revision=record.from_revision,
        to_revision=record.to_revision,
        state=pb.RolloutState.Value(f"ROLLOUT_STATE_{record.state}"),
        step=step,
        since_time=timestamp(record.since_time),
        message=record.message,
        spec=_rollout_spec(readable(record.policy)),
    )


def floor_message(record: FloorRecord) -> pb.ScalingFloor:
    """Returns a floor."""
    return pb.ScalingFloor(replicas=record.replicas, end_time=timestamp(record.end_time))


@reading()
def replica_message(record: ReplicaRecord, requests: int | None = None) -> pb.Replica:
    """Returns a replica as it is now; `requests` on it, as far as they are known. Raises UnreadableEndpointError."""
    state = observed_state(record)
    message = record.message or record.health_message
    if state is ReplicaState.STARTING and not message:
        message = ": ".join(filter(None, (record.session_reason, record.session_message)))
    return pb.Replica(
        session_id=str(record.session_id),
        session=record.session_name,
        revision=record.revision,
        state=pb.ReplicaState.Value(f"REPLICA_STATE_{state}"),
        since_time=timestamp(record.since_time),
        message=message,
        agent=record.agent_id,
        address=f"{record.address}:{record.port}" if record.address else "",
        drain_end_time=timestamp(record.drain_time),
        active_requests=bounded(requests or 0),
    )


@reading()
def decision_message(decision: Decision, time: dt.datetime | None) -> pb.ScalingDecision:
    """Returns a decision of the autoscaler, made at a time. Raises UnreadableEndpointError."""
    seen = decision.seen
    message = pb.ScalingDecision(
        decide_time=timestamp(time),
        from_target=decision.before,
        to_target=decision.target,
        reason=decision.cause,
        ready=seen.ready,
        starting=seen.starting,
        held=bounded(seen.held),
        in_flight=None if seen.in_flight is None else bounded(seen.in_flight),
        floor=seen.floor,
        recommendation=bounded(decision.recommendation),
    )
    for item in decision.metrics:
        message.metrics.add(
            name=item.metric.name,
            target=thousandths(item.metric.target),
            value=None if item.reading is None else thousandths(item.reading.known),
            missing=0 if item.reading is None else item.reading.missing,
            stable_mean="" if item.stable_mean is None else thousandths(item.stable_mean),
            burst_mean="" if item.burst_mean is None else thousandths(item.burst_mean),
            recommendation=bounded(item.recommendation),
        )
    return message


def bounded(value: int) -> int:
    """Returns a number as the field can hold it: what routers and replicas say may be any."""
    return min(value, 2**31 - 1)


def thousandths(value: int) -> str:
    """Returns a number of thousandths as a decimal number."""
    whole, rest = divmod(value, 1_000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")
