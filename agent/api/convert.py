"""Between the wire's messages and the plain values of attempts; the one place that knows both."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from google.protobuf import duration_pb2, timestamp_pb2

from retinue.agent.api.errors import invalid
from retinue.agent.attempts import (
    ATTEMPT_ID,
    AttemptSpec,
    DesiredAttempt,
    Goal,
    ImageFacts,
    ImageIdentity,
    Mount,
    ObservedAttempt,
    Phase,
)
from retinue.agent.conditions import ConditionType
from retinue.agent.v1 import agent_service_pb2
from retinue.types.v1 import port_pb2, usage_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.agent.conditions import Condition
    from retinue.agent.resources.sampler import Sample

GOALS = {
    agent_service_pb2.GOAL_HELD: Goal.HELD,
    agent_service_pb2.GOAL_RUNNING: Goal.RUNNING,
    agent_service_pb2.GOAL_STOPPED: Goal.STOPPED,
}
STATES = {
    Phase.WAITING: agent_service_pb2.ATTEMPT_STATE_ACCEPTED,
    Phase.PULLING: agent_service_pb2.ATTEMPT_STATE_PULLING,
    Phase.CREATING: agent_service_pb2.ATTEMPT_STATE_CREATING,
    Phase.CREATED: agent_service_pb2.ATTEMPT_STATE_CREATING,
    Phase.RUNNING: agent_service_pb2.ATTEMPT_STATE_RUNNING,
    Phase.STOPPING: agent_service_pb2.ATTEMPT_STATE_STOPPING,
    Phase.EXITED: agent_service_pb2.ATTEMPT_STATE_EXITED,
    Phase.FAILED: agent_service_pb2.ATTEMPT_STATE_FAILED,
}
MAX_TEXT = 4096
"""Characters of a message at the most."""
CONDITIONS = {
    ConditionType.DISK_FULL: agent_service_pb2.NODE_CONDITION_TYPE_DISK_FULL,
    ConditionType.UNKILLABLE: agent_service_pb2.NODE_CONDITION_TYPE_UNKILLABLE,
    ConditionType.NETWORK_DEGRADED: agent_service_pb2.NODE_CONDITION_TYPE_NETWORK_DEGRADED,
    ConditionType.ENGINE_UNRESPONSIVE: agent_service_pb2.NODE_CONDITION_TYPE_ENGINE_UNRESPONSIVE,
    ConditionType.STATE_DAMAGED: agent_service_pb2.NODE_CONDITION_TYPE_STATE_DAMAGED,
    ConditionType.OTHER: agent_service_pb2.NODE_CONDITION_TYPE_OTHER,
}
HOSTNAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")


def desired_attempt(message: agent_service_pb2.Attempt) -> DesiredAttempt:
    """Returns the attempt of a message. Raises ApiError on one that could not even be recorded."""
    if ATTEMPT_ID.fullmatch(message.id) is None or message.id != f"{message.kernel_id}.{message.epoch}":
        raise invalid("attempts.id", f"{message.id!r} is not KERNEL_ID.EPOCH")
    if (goal := GOALS.get(message.goal)) is None:
        raise invalid("attempts.goal", f"of attempt {message.id} is not set")
    if HOSTNAME.fullmatch(message.hostname) is None:
        raise invalid("attempts.hostname", f"{message.hostname!r} of attempt {message.id} is not a host name")
    if any(amount < 0 for amount in (*message.slots.values(), message.shared_memory)):
        raise invalid("attempts.slots", f"of attempt {message.id} is negative")
    spec = AttemptSpec(
        id=message.id,
        session_id=message.session_id,
        kernel_id=message.kernel_id,
        epoch=message.epoch,
        hostname=message.hostname,
        image=message.image,
        command=tuple(message.command),
        environment=dict(message.environment),
        slots=dict(message.slots),
        networked=message.networked,
        image_identity=ImageIdentity(message.image_identity.digest, message.image_identity.id),
        shared_memory=message.shared_memory,
        egress=message.egress,
        mounts=tuple(Mount(mount.root, mount.path, mount.target, mount.writable) for mount in message.mounts),
        session_secret=message.session_secret,
    )
    grace = message.stop_grace.seconds + message.stop_grace.nanos / 1e9
    fence = message.fence_timeout.seconds + message.fence_timeout.nanos / 1e9
    return DesiredAttempt(spec, goal, max(0.0, grace), max(0.0, fence))


def attempt_status(
    attempt_id: str, attempt: ObservedAttempt | None, trouble: str = ""
) -> agent_service_pb2.AttemptStatus:
    """Returns the status of an attempt; None for one of which nothing was done yet. `trouble` is what last failed on it."""
    if attempt is None:
        state = agent_service_pb2.ATTEMPT_STATE_ACCEPTED
        return agent_service_pb2.AttemptStatus(attempt_id=attempt_id, state=state, message=_shown(trouble))
    state = agent_service_pb2.ATTEMPT_STATE_HELD if attempt.held else STATES[attempt.phase]
    return agent_service_pb2.AttemptStatus(
        attempt_id=attempt_id,
        session_id=attempt.session_id,
        state=state,
        exit_code=attempt.exit_code,
        reason=_shown(attempt.reason),
        message=_shown(attempt.message or trouble),
        end_time=_timestamp(attempt.end_time),
        log_size=attempt.log_size,
        image=None if attempt.image is None else _image_facts(attempt.image),
        layers=[
            agent_service_pb2.LayerPull(id=layer.id, bytes=layer.bytes, total_bytes=layer.total, done=layer.done)
            for layer in attempt.layers
        ],
    )


def _shown(text: str) -> str:
    """Returns the text as a message can hold it and a terminal show it: engines, registries and file names have anything in theirs."""
    return "".join(character if character.isprintable() else " " for character in text[:MAX_TEXT])


def _image_facts(facts: ImageFacts) -> agent_service_pb2.ImageFacts:
    ports = [
        port_pb2.ServicePort(name=port.name, protocol=port.protocol, ports=port.ports) for port in facts.service_ports
    ]
    identity = agent_service_pb2.ImageIdentity(digest=facts.identity.digest, id=facts.identity.id)
    return agent_service_pb2.ImageFacts(identity=identity, service_ports=ports)


def attempt_stats(attempt_id: str, sample: Sample) -> agent_service_pb2.AttemptStats:
    """Returns the usage of an attempt; missing values are left out."""
    usage = sample.usage
    cpu = None
    if usage.cpu is not None:
        cpu = duration_pb2.Duration()
        cpu.FromNanoseconds(usage.cpu)
    return agent_service_pb2.AttemptStats(
        attempt_id=attempt_id,
        usage=usage_pb2.ResourceUsage(
            sample_time=_timestamp(sample.time),
            cpu_time=cpu,
            memory_bytes=usage.memory,
            memory_peak_bytes=usage.memory_peak,
            memory_limit_bytes=usage.memory_limit,
            read_bytes=usage.read,
            written_bytes=usage.written,
            received_bytes=usage.received,
            sent_bytes=usage.sent,
            tasks=usage.tasks,
        ),
    )


def attempt_usage(attempt_id: str, sample: Sample) -> agent_service_pb2.AttemptUsage:
    """Returns the short form of the usage, by a clock for rates."""
    clock = duration_pb2.Duration()
    clock.FromNanoseconds(round(sample.monotonic * 1e9))
    cpu = None
    if sample.usage.cpu is not None:
        cpu = duration_pb2.Duration()
        cpu.FromNanoseconds(sample.usage.cpu)
    return agent_service_pb2.AttemptUsage(
        attempt_id=attempt_id, clock=clock, cpu_time=cpu, memory_bytes=sample.usage.memory
    )


def node_conditions(conditions: Iterable[Condition]) -> agent_service_pb2.NodeConditions:
    """Returns everything that is wrong with the node."""
    return agent_service_pb2.NodeConditions(
        conditions=[
            agent_service_pb2.NodeCondition(
                type=CONDITIONS[condition.type],
                reason=condition.reason,
                message=condition.message,
                since_time=_timestamp(condition.since),
            )
            for condition in conditions
        ]
    )


def _timestamp(seconds: float | None) -> timestamp_pb2.Timestamp | None:
    if seconds is None:
        return None
    whole = math.floor(seconds)
    return timestamp_pb2.Timestamp(seconds=whole, nanos=min(999_999_999, int((seconds - whole) * 1e9)))
