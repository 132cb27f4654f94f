"""Between the wire's messages and the plain values of attempts; the one place that knows both."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import replace
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
    Isolation,
    Mount,
    ObservedAttempt,
    Owner,
    Phase,
    Probe,
    ProbeKind,
    PublishedPort,
    PullPolicy,
    SftpServer,
    Step,
    TimeWarning,
)
from retinue.agent.host.id_mapped import LIMIT
from retinue.agent.kernel.core.signals import Delivery, Target, signal_named
from retinue.agent.network.core.topology import VXLAN_PORT, Member, Network, check
from retinue.agent.network.paths import NO_PATHS
from retinue.agent.probes.core.machine import HealthState
from retinue.agent.probes.prober import NOT_ROUTED
from retinue.agent.v1 import agent_service_pb2
from retinue.rpc import times
from retinue.rpc.core.reasons import AgentConditionType
from retinue.types.v1 import isolation_pb2, port_pb2, probe_pb2, pull_policy_pb2, runtime_pb2, usage_pb2
from retinue.types.v1.layer_progress_pb2 import LayerProgress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retinue.agent.attempts import FailingStep
    from retinue.agent.conditions import Condition
    from retinue.agent.network.paths import FaultyPath, PathReport
    from retinue.agent.probes.prober import RoutedStatus
    from retinue.agent.resources.core.usage import FinalUsage
    from retinue.agent.resources.sampler import Sample
    from retinue.agent.runtime.contract import RuntimeStatus

GOALS = {
    agent_service_pb2.GOAL_HELD: Goal.HELD,
    agent_service_pb2.GOAL_RUNNING: Goal.RUNNING,
    agent_service_pb2.GOAL_STOPPED: Goal.STOPPED,
}
ISOLATIONS = {
    isolation_pb2.ISOLATION_PROCESS: Isolation.PROCESS,
    isolation_pb2.ISOLATION_CONTAINER: Isolation.CONTAINER,
    isolation_pb2.ISOLATION_VM: Isolation.VM,
}
PULL_POLICIES: Mapping[int, PullPolicy] = {
    pull_policy_pb2.PULL_POLICY_ALWAYS: PullPolicy.ALWAYS,
    pull_policy_pb2.PULL_POLICY_MISSING: PullPolicy.MISSING,
    pull_policy_pb2.PULL_POLICY_NEVER: PullPolicy.NEVER,
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
STEPS = {
    Step.NETWORK: agent_service_pb2.ATTEMPT_STEP_NETWORK,
    Step.CREATE: agent_service_pb2.ATTEMPT_STEP_CREATE,
    Step.ATTACH: agent_service_pb2.ATTEMPT_STEP_ATTACH,
    Step.START: agent_service_pb2.ATTEMPT_STEP_START,
    Step.STOP: agent_service_pb2.ATTEMPT_STEP_STOP,
    Step.OTHER: agent_service_pb2.ATTEMPT_STEP_OTHER,
}
HEALTH = {
    HealthState.STARTING: agent_service_pb2.HEALTH_STATE_STARTING,
    HealthState.READY: agent_service_pb2.HEALTH_STATE_READY,
    HealthState.UNREADY: agent_service_pb2.HEALTH_STATE_UNREADY,
}
MAX_HEALTH_TEXT = 1024
"""Characters of the message of a health at the most."""
SHORTEST_PERIOD, LONGEST_PERIOD = 0.1, 3600.0
"""Seconds from one probe to the next, and for an answer; what is outside is brought to the nearest."""
MAX_PATH_TEXT = 1024
"""Characters of the message of a path at the most."""
MAX_TEXT = 4096
"""Characters of a message at the most."""
CONDITIONS = {
    AgentConditionType.DISK_FULL: agent_service_pb2.NODE_CONDITION_TYPE_DISK_FULL,
    AgentConditionType.UNKILLABLE: agent_service_pb2.NODE_CONDITION_TYPE_UNKILLABLE,
    AgentConditionType.NETWORK_DEGRADED: agent_service_pb2.NODE_CONDITION_TYPE_NETWORK_DEGRADED,
    AgentConditionType.ENGINE_UNRESPONSIVE: agent_service_pb2.NODE_CONDITION_TYPE_ENGINE_UNRESPONSIVE,
    AgentConditionType.STATE_DAMAGED: agent_service_pb2.NODE_CONDITION_TYPE_STATE_DAMAGED,
    AgentConditionType.DEVICE_LOST: agent_service_pb2.NODE_CONDITION_TYPE_DEVICE_LOST,
    AgentConditionType.PATH_BROKEN: agent_service_pb2.NODE_CONDITION_TYPE_PATH_BROKEN,
    AgentConditionType.OTHER: agent_service_pb2.NODE_CONDITION_TYPE_OTHER,
}
UMASK = re.compile(r"[0-7]{3}")
HOSTNAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")


def desired_attempt(message: agent_service_pb2.Attempt) -> DesiredAttempt:
    """Returns the attempt of a message. Raises ApiError on one that could not even be recorded."""
    if ATTEMPT_ID.fullmatch(message.id) is None or message.id != f"{message.kernel_id}.{message.number}":
        raise invalid("attempts.id", f"{message.id!r} is not KERNEL_ID.ATTEMPT")
    if (goal := GOALS.get(message.goal)) is None:
        raise invalid("attempts.goal", f"of attempt {message.id} is not set")
    if HOSTNAME.fullmatch(message.hostname) is None:
        raise invalid("attempts.hostname", f"{message.hostname!r} of attempt {message.id} is not a host name")
    if message.working_directory and not message.working_directory.startswith("/"):
        raise invalid("attempts.working_directory", f"of attempt {message.id} is not an absolute path")
    if any(amount < 0 for amount in (*message.slots.values(), message.shared_memory)):
        raise invalid("attempts.slots", f"of attempt {message.id} is negative")
    spec = AttemptSpec(
        id=message.id,
        session_id=message.session_id,
        kernel_id=message.kernel_id,
        epoch=message.number,
        hostname=message.hostname,
        image=message.image,
        command=tuple(message.command),
        environment=dict(message.environment),
        slots=dict(message.slots),
        networked=message.networked,
        image_identity=ImageIdentity(message.image_identity.digest, message.image_identity.id),
        shared_memory=message.shared_memory,
        egress=message.egress,
        mounts=tuple(map(_mount, message.mounts)),
        session_secret=message.session_secret,
        sftp=_sftp_server(message) if message.HasField("sftp") else None,
        published=_published(message) if message.HasField("published") else None,
        isolation=_isolation(message),
        stop_signal=signal_named(message.stop_signal),
        stops_all=message.stops_all,
        working_directory=message.working_directory,
        pull_policy=PULL_POLICIES.get(message.pull_policy, PullPolicy.MISSING),
        image_command=message.image_command,
        warning=_warning(message.time_warning) if message.HasField("time_warning") else None,
    )
    grace = times.seconds(message.stop_grace)
    fence = times.seconds(message.fence_timeout)
    return DesiredAttempt(spec, goal, max(0.0, grace), max(0.0, fence))


def _warning(message: agent_service_pb2.TimeWarning) -> TimeWarning | None:
    """Returns a warning; None when its signal is one that only later versions know."""
    if (signal := signal_named(message.signal)) is None:
        return None
    target = Target.STARTED if message.started_only else Target.COMMAND
    return TimeWarning(Delivery(signal, target), max(0.0, times.seconds(message.after)))


def _mount(message: agent_service_pb2.Mount) -> Mount:
    """Raises ApiError on an owner that is none, root above all."""
    owner = None
    if message.uid or message.gid:
        if not (0 < message.uid < LIMIT and 0 < message.gid < LIMIT):
            raise invalid("attempts.mounts", f"files of {message.target!r} belong to {message.uid}:{message.gid}")
        owner = Owner(message.uid, message.gid)
    return Mount(message.root, message.path, message.target, message.writable, owner)


def _isolation(message: agent_service_pb2.Attempt) -> Isolation:
    if message.isolation == isolation_pb2.ISOLATION_UNSPECIFIED:
        # Of a manager that does not know it.
        return Isolation.CONTAINER if message.image else Isolation.PROCESS
    return ISOLATIONS.get(message.isolation, Isolation.OTHER)


def _sftp_server(message: agent_service_pb2.Attempt) -> SftpServer:
    sftp = message.sftp
    lines = (sftp.host_certificate, sftp.user_authority, sftp.principal, *sftp.authorized_keys)
    if not all(line and line.isprintable() for line in lines):
        raise invalid("attempts.sftp", f"of attempt {message.id} holds more or less than one line")
    return SftpServer(
        sftp.host_key,
        sftp.host_certificate,
        sftp.user_authority,
        sftp.principal,
        tuple(sftp.authorized_keys),
        max(0, sftp.max_file_bytes),
        int(sftp.umask, 8) if UMASK.fullmatch(sftp.umask) else 0o022,
    )


def _published(message: agent_service_pb2.Attempt) -> PublishedPort:
    published = message.published
    if not 1 <= published.port < 65_536:  # noqa: PLR2004  # the ports there are
        raise invalid("attempts.published.port", f"{published.port} of attempt {message.id} is no port")
    return PublishedPort(
        published.port,
        _probe(published.readiness) or Probe(ProbeKind.TCP),
        _probe(published.startup),
        _probe(published.liveness),
        _path(published.metrics_path),
    )


def _probe(message: probe_pb2.Probe) -> Probe | None:
    """Returns a probe; None of one that is not set, or asks in a way that this version does not know."""
    match message.WhichOneof("check"):
        case "http":
            http = message.http
            path = _path(http.path) or "/"
            lowest, highest = http.min_status or 200, http.max_status or 399
            probe = Probe(ProbeKind.HTTP, path=path, port=_port(http.port), min_status=lowest, max_status=highest)
        case "tcp":
            probe = Probe(ProbeKind.TCP, port=_port(message.tcp.port))
        case "grpc":
            probe = Probe(ProbeKind.GRPC, service=message.grpc.service)
        case "exec" if message.exec.command:
            probe = Probe(ProbeKind.EXEC, command=tuple(message.exec.command))
        case _:
            return None
    return replace(
        probe,
        period=_seconds(message.period, probe.period),
        timeout=_seconds(message.timeout, probe.timeout),
        failures=message.failures if message.failures > 0 else probe.failures,
        successes=max(1, message.successes),
    )


def _path(text: str) -> str:
    """Returns what may stand in the first line of an HTTP request; empty for anything else."""
    return text if text.startswith("/") and text.isprintable() and text.isascii() and " " not in text else ""


def _seconds(span: duration_pb2.Duration, default: float) -> float:
    return min(LONGEST_PERIOD, max(SHORTEST_PERIOD, times.seconds(span) or default))


def _port(number: int) -> int:
    return number if 0 < number < 65_536 else 0  # noqa: PLR2004  # the ports there are


def runtime_status(status: RuntimeStatus) -> runtime_pb2.RuntimeStatus:
    """Returns the message of a runtime."""
    return runtime_pb2.RuntimeStatus(name=status.name, available=status.available, message=_shown(status.message))


def attempt_status(
    attempt_id: str,
    attempt: ObservedAttempt | None,
    trouble: str = "",
    routed: RoutedStatus = NOT_ROUTED,
    failing: Iterable[FailingStep] = (),
    *,
    paths: PathReport = NO_PATHS,
) -> agent_service_pb2.AttemptStatus:
    """Returns the status of an attempt; None for one of which nothing was done yet. `trouble` is what last failed on
    it, `routed` what routers have to know, `failing` what fails again and again, `paths` are those of its session's
    network.
    """
    failing_steps = [
        agent_service_pb2.FailingStep(
            step=STEPS[item.step],
            error=_shown(item.retries.error),
            since_time=_timestamp(item.retries.since),
            tries=item.retries.tries,
        )
        for item in failing
    ]
    if attempt is None:
        state = agent_service_pb2.ATTEMPT_STATE_ACCEPTED
        return agent_service_pb2.AttemptStatus(
            attempt_id=attempt_id, state=state, message=_shown(trouble), failing_steps=failing_steps
        )
    held = attempt.held and paths.proved
    state = agent_service_pb2.ATTEMPT_STATE_HELD if held else STATES[attempt.phase]
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
            LayerProgress(id=layer.id, bytes=layer.bytes, total_bytes=layer.total, done=layer.done)
            for layer in attempt.layers
        ],
        health=_health(routed),
        usage=None if attempt.usage is None else _final_usage(attempt.usage),
        memory_kills=attempt.memory_kills,
        memory_kill_time=_timestamp(attempt.memory_kill_time),
        failing_steps=failing_steps,
        faulty_paths=[] if attempt.phase.ended else map(_faulty_path, paths.faulty),
        pause=None
        if attempt.pause is None
        else agent_service_pb2.AttemptPause(
            message=_shown(attempt.pause.message), since_time=_timestamp(attempt.pause.since)
        ),
        published=None
        if routed.location is None or attempt.phase.ended
        else agent_service_pb2.PublishedAddress(address=routed.location[0], port=routed.location[1]),
    )


def _faulty_path(path: FaultyPath) -> agent_service_pb2.FaultyPath:
    return agent_service_pb2.FaultyPath(
        agent_id=path.agent_id,
        fault=agent_service_pb2.PATH_FAULT_UNPROVED if path.unproved else agent_service_pb2.PATH_FAULT_BROKEN,
        message=_shown(path.message[:MAX_PATH_TEXT]),
        since_time=_timestamp(path.since),
    )


def _final_usage(usage: FinalUsage) -> usage_pb2.ResourceUsage:
    return usage_pb2.ResourceUsage(
        sample_time=_timestamp(usage.time),
        cpu_time=_cpu_time(usage.cpu),
        memory_peak_bytes=usage.memory_peak,
        read_bytes=usage.read,
        written_bytes=usage.written,
    )


def _cpu_time(nanoseconds: int | None) -> duration_pb2.Duration | None:
    if nanoseconds is None:
        return None
    return times.duration(nanoseconds / 1e9)


def _health(routed: RoutedStatus) -> agent_service_pb2.AttemptHealth | None:
    if (health := routed.health) is None:
        return None
    message = _shown(health.message[:MAX_HEALTH_TEXT])
    return agent_service_pb2.AttemptHealth(
        state=HEALTH[health.state], since_time=_timestamp(health.since), message=message
    )


def _shown(text: str) -> str:
    """Returns the text as a message can hold it and a terminal show it: engines,
    registries and file names have anything in theirs.
    """
    return "".join(character if character.isprintable() else " " for character in text[:MAX_TEXT])


def _image_facts(facts: ImageFacts) -> agent_service_pb2.ImageFacts:
    ports = [
        port_pb2.ServicePort(name=port.name, protocol=port.protocol, ports=port.ports) for port in facts.service_ports
    ]
    identity = agent_service_pb2.ImageIdentity(digest=facts.identity.digest, id=facts.identity.id)
    return agent_service_pb2.ImageFacts(identity=identity, service_ports=ports)


def resource_usage(sample: Sample) -> usage_pb2.ResourceUsage:
    """Returns a sample; missing values are left out."""
    usage = sample.usage
    return usage_pb2.ResourceUsage(
        sample_time=_timestamp(sample.time),
        cpu_time=_cpu_time(usage.cpu),
        memory_bytes=usage.memory,
        memory_peak_bytes=usage.memory_peak,
        memory_limit_bytes=usage.memory_limit,
        read_bytes=usage.read,
        written_bytes=usage.written,
        received_bytes=usage.received,
        sent_bytes=usage.sent,
        tasks=usage.tasks,
        gpu_percent=sample.gpu,
    )


def attempt_usage(attempt_id: str, sample: Sample, metrics: Mapping[str, float]) -> agent_service_pb2.AttemptUsage:
    """Returns the short form of the usage, by a clock for rates, with the attempt's own metrics."""
    clock = times.duration(sample.monotonic)
    return agent_service_pb2.AttemptUsage(
        attempt_id=attempt_id,
        clock=clock,
        cpu_time=_cpu_time(sample.usage.cpu),
        memory_bytes=sample.usage.memory,
        gpu_percent=sample.gpu,
        metrics=metrics,
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


def network_from_message(message: agent_service_pb2.Network) -> Network:
    """Returns the network of a message, checked. Raises InvalidNetworkError, naming what is wrong with it."""
    network = Network(
        session_id=message.session_id,
        vni=message.vni,
        subnet=message.subnet,
        mtu=message.mtu,
        members=tuple(
            Member(
                kernel_id=member.kernel_id,
                hostname=member.hostname,
                address=member.address,
                mac=member.mac.lower(),
                underlay_address=_usual(member.underlay_address),
                local=member.local,
                agent_id=member.agent_id,
                proves_paths=member.proves_paths,
            )
            for member in message.members
        ),
        vxlan_port=message.vxlan_port or VXLAN_PORT,
    )
    check(network)
    return network


def _usual(address: str) -> str:
    """Returns the address in the form that the kernel reports it in, so that equal ones compare equal;
    else as it is.
    """
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address
