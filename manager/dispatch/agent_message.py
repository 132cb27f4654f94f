"""What agents send over a stream, read once into values that everything behind may rely on.

`parse` is total: whatever the bytes, the result is a value or Rejected. Rejected is the message that no sound agent sends; text that is only
shown is cleaned, numbers that are only shown are clamped, and attempts whose id is no attempt's are left out, because nothing can be
meant by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import agent_values as values
from retinue.manager.dispatch.agent_values import Odd
from retinue.manager.reasons import AgentConditionReason, AttemptReason
from retinue.manager.session.core.attempts import (
    AttemptKey,
    AttemptReport,
    AttemptUsage,
    ImageReport,
    LayerReport,
    NodeCondition,
    NodeFacts,
    NodeReport,
)
from retinue.types.v1 import port_pb2

MAX_ATTEMPTS, MAX_USAGES, MAX_LAYERS, MAX_PORTS, MAX_CONDITIONS = 20_000, 1_000, 200, 64, 32
_MAX_BACKENDS = 16
# States that this manager knows, without their prefix.
_STATES = {number: name.removeprefix("ATTEMPT_STATE_") for name, number in pb.AttemptState.items() if number}
_CONDITIONS = {
    number: name.removeprefix("NODE_CONDITION_TYPE_") for name, number in pb.NodeConditionType.items() if number
}
_OTHER_TYPE = _CONDITIONS[pb.NODE_CONDITION_TYPE_OTHER]
_DIGEST = re.compile(r"[a-z0-9]{1,32}:[0-9a-f]{32,128}")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that makes no sense: why, as an UPPER_SNAKE word and in words fit to be shown."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What attempts of an agent have used."""

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
    except Odd as error:
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
        raise Odd(AgentConditionReason.WRONG_AGENT, f"it says that it is agent {values.quoted(message.agent_id)}")
    values.bounded(message.backends, _MAX_BACKENDS, "kinds of kernels")
    return NodeFacts(
        agent_id=agent_id,
        instance=values.text(message.instance, 64),
        boot_id=values.text(message.boot_id, 64),
        version=values.text(message.version, 64),
        architecture=values.word(message.architecture, "the architecture"),
        capacity=values.amounts(message.capacity),
        backends=tuple(values.word(backend, "a kind of kernels") for backend in message.backends if backend),
        underlay_address=values.underlay(message.underlay_address),
        underlay_mtu=values.mtu(message.underlay_mtu),
        attempts=_statuses(message.attempts),
        network_session_ids=values.session_ids(message.network_session_ids, MAX_ATTEMPTS),
        conditions=_conditions(message.node_conditions),
    )


def _report(agent_id: str, message: pb.Report) -> NodeReport:
    if message.sequence < 1:
        raise Odd(AgentConditionReason.BAD_SEQUENCE, f"a report has the number {message.sequence}")
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


def _statuses(messages: Sequence[pb.AttemptStatus]) -> tuple[AttemptReport, ...]:
    values.bounded(messages, MAX_ATTEMPTS, "attempts")
    return tuple(filter(None, map(_status, messages)))


def _status(status: pb.AttemptStatus) -> AttemptReport | None:
    key = values.attempt_key(status.attempt_id)
    if key is None:
        return None
    reason, message = _known(AttemptReason, status.reason, status.message)
    return AttemptReport(
        key=key,
        session_id=values.session_id(status.session_id) if status.session_id else None,
        state=_STATES.get(status.state, ""),
        exit_code=status.exit_code if status.HasField("exit_code") else None,
        reason=reason,
        message=message,
        log_size=values.byte_count(status.log_size),
        image=_image(status.image) if status.HasField("image") else None,
        layers=tuple(
            LayerReport(
                values.text(layer.id, 64),
                values.byte_count(layer.bytes),
                values.byte_count(layer.total_bytes),
                layer.done,
            )
            for layer in status.layers[:MAX_LAYERS]
        ),
    )


def _image(facts: pb.ImageFacts) -> ImageReport:
    digest, identifier = (
        text if _DIGEST.fullmatch(text) else "" for text in (facts.identity.digest, facts.identity.id)
    )
    return ImageReport(digest, identifier, tuple(_ports(facts.service_ports[:MAX_PORTS])))


def _ports(messages: Iterable[port_pb2.ServicePort]) -> Iterable[Mapping[str, Any]]:
    for port in messages:
        numbers = [number for number in port.ports[:MAX_PORTS] if 1 <= number <= values.MAX_PORT]
        name, protocol = values.text(port.name, 64), values.text(port.protocol, 16)
        if name and numbers:
            yield {"name": name, "protocol": protocol, "ports": numbers}


def _usages(message: pb.Usage) -> tuple[AttemptUsage, ...]:
    values.bounded(message.attempts, MAX_USAGES, "attempts")
    return tuple(
        AttemptUsage(
            item.attempt_id,
            values.seconds(item.clock),
            values.seconds(item.cpu_time) if item.HasField("cpu_time") else None,
            values.byte_count(item.memory_bytes) if item.HasField("memory_bytes") else None,
        )
        for item in message.attempts
        if values.attempt_key(item.attempt_id) is not None
    )


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
    """Returns a reason of the closed set, or none, and the message; OTHER for an unknown one, with which the message begins."""
    reason = values.text(reason, 64)
    if reason and reason not in reasons.__members__:
        return reasons.OTHER, values.text(f"{reason}: {message}", 1024)
    return reason, values.text(message, 1024)
