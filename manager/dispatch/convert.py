"""Translates between the messages of a Sync stream and the plain values of `retinue.manager.domain.session.attempts`.

`parse` reads what agents send, and is total: whatever the bytes, the result is a value or Rejected. Rejected is the
message that no sound agent sends; text that is only shown is cleaned, numbers that are only shown are clamped, and
attempts whose id is no attempt's are left out, because nothing can be meant by them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import agent_values as values
from retinue.manager.dispatch.agent_values import InvalidReportError
from retinue.manager.domain.session.attempts import (
    AttemptKey,
    AttemptPause,
    AttemptStatus,
    AttemptUsage,
    FailingStep,
    FaultyPath,
    LayerReport,
    NodeCondition,
    NodeFacts,
    NodeReport,
    RuntimeStatus,
    Step,
    UsageWatch,
)
from retinue.manager.domain.session.final_usage import FinalUsage
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.probes import Health, PublishedStatus
from retinue.manager.domain.session.service_ports import ServicePortSpec
from retinue.manager.domain.session.states import Observed
from retinue.rpc.core.reasons import AgentConditionReason, AttemptReason
from retinue.rpc.core.retries import MAX_ERROR
from retinue.rpc.times import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from retinue.manager.dispatch.sent_state import DesiredState, Difference
    from retinue.types.v1 import port_pb2, usage_pb2

MAX_ATTEMPTS, MAX_USAGES, MAX_LAYERS, MAX_PORTS, MAX_CONDITIONS = 20_000, 1_000, 200, 64, 32
# Attempts whose metrics an agent lets be watched, and metrics of each.
MAX_WATCHED, MAX_METRICS = 10_000, 8
MAX_PERCENT, MAX_METRIC = 100.0, 1e12
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,127}")
_MAX_BACKENDS = 16
_MAX_RUNTIME_TEXT = _MAX_PAUSE_TEXT = 256
# Of an attempt.
_MAX_PATHS, _MAX_PATH_TEXT = 8, 1024
# States that this manager knows, without their prefix.
_STATES = {pb.AttemptState.Value(f"ATTEMPT_STATE_{state}"): state for state in Observed if state}
_STEPS = {pb.AttemptStep.Value(f"ATTEMPT_STEP_{step}"): step for step in Step}
_CONDITIONS = {
    number: name.removeprefix("NODE_CONDITION_TYPE_") for name, number in pb.NodeConditionType.items() if number
}
_OTHER_TYPE = _CONDITIONS[pb.NODE_CONDITION_TYPE_OTHER]
_HEALTH = {
    pb.HEALTH_STATE_STARTING: Health.STARTING,
    pb.HEALTH_STATE_READY: Health.READY,
    pb.HEALTH_STATE_UNREADY: Health.UNREADY,
}
_DIGEST = re.compile(r"[a-z0-9]{1,32}:[0-9a-f]{32,128}")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that makes no sense: why, as an UPPER_SNAKE word and in words fit to be shown."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The resource use of an agent's attempts."""

    attempts: tuple[AttemptUsage, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The agent is there; the number is to be sent back."""

    number: int


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything that is wrong with a node."""

    conditions: tuple[NodeCondition, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message of a kind that only a later version knows: to be ignored."""


Message: TypeAlias = NodeFacts | NodeReport | Usage | Heartbeat | Conditions | Unknown


def parse(agent_id: str, message: pb.SyncResponse) -> Message | Rejected:
    """Returns what the agent that was dialled has sent."""
    try:
        return _step(agent_id, message)
    except InvalidReportError as error:
        return Rejected(error.reason, str(error))


def _step(agent_id: str, message: pb.SyncResponse) -> Message:
    step: Message = Unknown()
    match message.WhichOneof("step"):
        case "welcome":
            step = _facts(agent_id, message.welcome)
        case "report":
            step = _report(agent_id, message.report)
        case "usage":
            step = Usage(_usages(message.usage))
        case "heartbeat":
            step = Heartbeat(max(0, message.heartbeat.number))
        case "node_conditions":
            step = Conditions(_conditions(message.node_conditions))
    return step


def _facts(agent_id: str, message: pb.Welcome) -> NodeFacts:
    if message.agent_id != agent_id:
        raise InvalidReportError(
            AgentConditionReason.WRONG_AGENT, f"it says that it is agent {values.quoted(message.agent_id)}"
        )
    values.bounded(message.available_runtimes, _MAX_BACKENDS, "kinds of kernels")
    return NodeFacts(
        agent_id=agent_id,
        instance=values.text(message.instance, 64),
        boot_id=values.text(message.boot_id, 64),
        version=values.text(message.version, 64),
        architecture=values.word(message.architecture, "the architecture"),
        capacity=values.capacity(message.capacity),
        backends=tuple(values.word(backend, "a kind of kernels") for backend in message.available_runtimes if backend),
        runtimes=tuple(
            RuntimeStatus(
                values.text(status.name, 32), status.available, values.text(status.message, _MAX_RUNTIME_TEXT)
            )
            for status in message.runtimes[:_MAX_BACKENDS]
        ),
        underlay_address=values.underlay(message.underlay_address),
        underlay_mtu=values.mtu(message.underlay_mtu),
        reachable_networks=values.ipv4_networks(message.reachable_networks),
        attempts=_statuses(message.attempts),
        network_session_ids=values.session_ids(message.network_session_ids, MAX_ATTEMPTS),
        conditions=_conditions(message.node_conditions),
        proves_paths=message.proves_paths,
    )


def _report(agent_id: str, message: pb.Report) -> NodeReport:
    if message.sequence < 1:
        raise InvalidReportError(AgentConditionReason.BAD_SEQUENCE, f"a report has the number {message.sequence}")
    return NodeReport(
        agent_id=agent_id,
        attempts=_statuses(message.attempts),
        removed_attempts=_keys(message.removed_attempt_ids),
        removed_networks=values.session_ids(message.removed_network_session_ids, MAX_ATTEMPTS),
        sequence=message.sequence,
    )


def _keys(attempt_ids: Sequence[str]) -> frozenset[AttemptKey]:
    values.bounded(attempt_ids, MAX_ATTEMPTS, "attempts")
    return frozenset(filter(None, map(values.attempt_key, attempt_ids)))


def _statuses(messages: Sequence[pb.AttemptStatus]) -> tuple[AttemptStatus, ...]:
    values.bounded(messages, MAX_ATTEMPTS, "attempts")
    return tuple(filter(None, map(_status, messages)))


def _status(status: pb.AttemptStatus) -> AttemptStatus | None:
    key = values.attempt_key(status.attempt_id)
    if key is None:
        return None
    reason, message = _known(AttemptReason, status.reason, status.message)
    return AttemptStatus(
        key=key,
        session_id=values.session_id(status.session_id) if status.session_id else None,
        state=_STATES.get(status.state, Observed.UNKNOWN),
        exit_code=status.exit_code if status.HasField("exit_code") else None,
        reason=reason,
        message=message,
        log_size=values.byte_count(status.log_size),
        image=_image(status.image),
        layers=tuple(
            LayerReport(
                values.text(layer.id, 64),
                values.byte_count(layer.bytes),
                values.byte_count(layer.total_bytes),
                layer.done,
            )
            for layer in status.layers[:MAX_LAYERS]
        ),
        end_time=values.moment(status.end_time) if status.HasField("end_time") else None,
        published=_published_status(status),
        usage=_final_usage(status.usage) if status.HasField("usage") else None,
        memory_kills=values.byte_count(status.memory_kills),
        memory_kill_time=values.moment(status.memory_kill_time) if status.HasField("memory_kill_time") else None,
        pause=_pause(status.pause) if status.HasField("pause") else None,
        failing_steps=tuple(map(_failing_step, status.failing_steps[: len(Step)])),
        faulty_paths=tuple(
            FaultyPath(
                values.text(path.message, _MAX_PATH_TEXT),
                values.moment(path.since_time) if path.HasField("since_time") else None,
                path.fault == pb.PATH_FAULT_UNPROVED,
            )
            for path in status.faulty_paths[:_MAX_PATHS]
        ),
    )


def _failing_step(step: pb.FailingStep) -> FailingStep:
    return FailingStep(
        _STEPS.get(step.step, Step.OTHER),
        values.text(step.error, MAX_ERROR),
        values.byte_count(step.tries),
        values.moment(step.since_time) if step.HasField("since_time") else None,
    )


def _pause(pause: pb.AttemptPause) -> AttemptPause:
    since = values.moment(pause.since_time) if pause.HasField("since_time") else None
    return AttemptPause(values.text(pause.message, _MAX_PAUSE_TEXT), since)


def _final_usage(usage: usage_pb2.ResourceUsage) -> FinalUsage:
    return FinalUsage(
        values.moment(usage.sample_time) if usage.HasField("sample_time") else None,
        values.nanoseconds(usage.cpu_time) if usage.HasField("cpu_time") else None,
        values.byte_count(usage.memory_peak_bytes) if usage.HasField("memory_peak_bytes") else None,
        values.byte_count(usage.read_bytes) if usage.HasField("read_bytes") else None,
        values.byte_count(usage.written_bytes) if usage.HasField("written_bytes") else None,
    )


def _published_status(status: pb.AttemptStatus) -> PublishedStatus | None:
    if not (status.HasField("health") or status.HasField("published")):
        return None
    address, port = values.text(status.published.address, 64), status.published.port
    reachable = bool(address) and 1 <= port <= values.MAX_PORT
    return PublishedStatus(
        _HEALTH.get(status.health.state),
        values.text(status.health.message, 1024),
        address if reachable else "",
        port if reachable else 0,
    )


def _image(facts: pb.ImageFacts) -> SeenImage:
    digest, identifier = (
        text if _DIGEST.fullmatch(text) else "" for text in (facts.identity.digest, facts.identity.id)
    )
    return SeenImage(digest, identifier, tuple(_ports(facts.service_ports[:MAX_PORTS])))


def _ports(messages: Iterable[port_pb2.ServicePort]) -> Iterator[ServicePortSpec]:
    for port in messages:
        numbers = [number for number in port.ports[:MAX_PORTS] if 1 <= number <= values.MAX_PORT]
        name, protocol = values.text(port.name, 64), values.text(port.protocol, 16)
        if name and numbers:
            yield ServicePortSpec(name, protocol, tuple(numbers))


def _usages(message: pb.Usage) -> tuple[AttemptUsage, ...]:
    values.bounded(message.attempts, MAX_USAGES, "attempts")
    return tuple(
        AttemptUsage(
            item.attempt_id,
            values.seconds(item.clock),
            values.seconds(item.cpu_time) if item.HasField("cpu_time") else None,
            values.byte_count(item.memory_bytes) if item.HasField("memory_bytes") else None,
            item.gpu_percent if item.HasField("gpu_percent") and 0 <= item.gpu_percent <= MAX_PERCENT else None,
            _metrics(item.metrics),
        )
        for item in message.attempts
        if values.attempt_key(item.attempt_id) is not None
    )


def _metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the values of an attempt's own metrics that are numbers: a replica may show anything."""
    values.bounded(list(metrics), MAX_METRICS, "metrics")
    return {
        name: min(max(value, 0.0), MAX_METRIC)
        for name, value in metrics.items()
        if _METRIC.fullmatch(name) and math.isfinite(value)
    }


def _conditions(message: pb.NodeConditions) -> tuple[NodeCondition, ...]:
    values.bounded(message.conditions, MAX_CONDITIONS, "conditions")
    return tuple(map(_condition, message.conditions))


def _condition(condition: pb.NodeCondition) -> NodeCondition:
    reason, message = _known(AgentConditionReason, condition.reason, condition.message)
    return NodeCondition(
        type=_CONDITIONS.get(condition.type, _OTHER_TYPE),
        reason=reason,
        message=message,
        since=values.moment(condition.since_time) if condition.HasField("since_time") else None,
    )


def _known(reasons: type[AttemptReason | AgentConditionReason], reason: str, message: str) -> tuple[str, str]:
    """Returns a reason of the closed set, or none, and the message;
    OTHER for an unknown one, with which the message begins.
    """
    reason = values.text(reason, 64)
    if reason and reason not in reasons.__members__:
        return reasons.OTHER, values.text(f"{reason}: {message}", 1024)
    return reason, values.text(message, 1024)


def hello(incarnation: str, term: int, agent_id: str, heartbeat_seconds: float) -> pb.SyncRequest:
    """Opens a stream."""
    interval = duration(heartbeat_seconds)
    return pb.SyncRequest(
        hello=pb.Hello(incarnation=incarnation, term=term, agent_id=agent_id, heartbeat_interval=interval)
    )


def snapshot(
    desired: DesiredState,
    protected: Iterable[str] = (),
    removed_attempts: Iterable[str] = (),
    removed_networks: Iterable[str] = (),
    routers: Iterable[str] = (),
) -> pb.SyncRequest:
    """The whole desired set, the addresses that no kernel may reach, the attempts and networks of the welcome that are
    not to exist, and the addresses of routers.
    """
    return pb.SyncRequest(
        snapshot=pb.Snapshot(
            attempts=desired.attempts.values(),
            networks=desired.networks.values(),
            protected_addresses=sorted(protected),
            removed_attempt_ids=sorted(removed_attempts),
            removed_network_session_ids=sorted(removed_networks),
            router_addresses=sorted(routers),
        )
    )


def change(difference: Difference) -> pb.SyncRequest:
    """A difference to the desired set."""
    return pb.SyncRequest(
        change=pb.Change(
            attempts=difference.attempts,
            removed_attempt_ids=difference.removed_attempts,
            networks=difference.networks,
            removed_network_session_ids=difference.removed_networks,
            added_protected_addresses=difference.added_protected,
            removed_protected_addresses=difference.removed_protected,
            added_router_addresses=difference.added_routers,
            removed_router_addresses=difference.removed_routers,
        )
    )


def ack(sequence: int) -> pb.SyncRequest:
    """Reports up to `sequence` are committed."""
    return pb.SyncRequest(ack=pb.Ack(sequence=sequence))


def heartbeat(number: int = 0) -> pb.SyncRequest:
    """The manager is there, and has heard the agent's heartbeat of that number."""
    return pb.SyncRequest(heartbeat=pb.Heartbeat(number=number))


def watch_usage(watch: UsageWatch) -> pb.SyncRequest:
    """Returns the request to report what attempts use."""
    interval = duration(watch.interval)
    metrics = [pb.WatchedMetrics(attempt_id=key, names=sorted(names)) for key, names in watch.metrics.items()]
    return pb.SyncRequest(watch_usage=pb.WatchUsage(interval=interval, metrics=metrics[:MAX_WATCHED]))


def answered(attempts: Iterable[str]) -> pb.SyncRequest:
    """Returns that routers had answers from these attempts."""
    return pb.SyncRequest(responsive_attempts=pb.ResponsiveAttempts(attempt_ids=sorted(attempts)))
