"""Between the plain values of `manager.fleet.desired` and the messages of the agent's protocol."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from manager.fleet.desired import (
    AttemptReport,
    AttemptUsage,
    Desired,
    DesiredAttempt,
    DesiredNetwork,
    Difference,
    ImageReport,
    LayerReport,
    NodeFacts,
    NodeReport,
)
from retinue.agent.v1 import agent_service_pb2 as pb

# States that this manager knows, without their prefix.
_STATES = {number: name.removeprefix("ATTEMPT_STATE_") for name, number in pb.AttemptState.items()}
_DIGEST = re.compile(r"[a-z0-9]{1,32}:[0-9a-f]{32,128}")
_MAX_LAYERS, _MAX_PORTS = 200, 64


def hello(term: int, agent_id: str, heartbeat_seconds: float) -> pb.SyncRequest:
    """Opens a stream."""
    interval = Duration()
    interval.FromTimedelta(dt.timedelta(seconds=heartbeat_seconds))
    return pb.SyncRequest(hello=pb.Hello(term=term, agent_id=agent_id, heartbeat_interval=interval))


def snapshot(desired: Desired, protected: Iterable[str] = ()) -> pb.SyncRequest:
    """The whole desired set, and the addresses that no kernel may reach."""
    return pb.SyncRequest(
        snapshot=pb.Snapshot(
            attempts=_attempts(desired.attempts.values()),
            networks=_networks(desired.networks.values()),
            protected_addresses=sorted(protected),
        )
    )


def change(difference: Difference) -> pb.SyncRequest:
    """A difference to the desired set."""
    return pb.SyncRequest(
        change=pb.Change(
            attempts=_attempts(difference.attempts),
            removed_attempt_ids=difference.removed_attempts,
            networks=_networks(difference.networks),
            removed_network_session_ids=difference.removed_networks,
            added_protected_addresses=difference.added_protected,
            removed_protected_addresses=difference.removed_protected,
        )
    )


def ack(sequence: int) -> pb.SyncRequest:
    """Reports up to `sequence` are committed."""
    return pb.SyncRequest(ack=pb.Ack(sequence=sequence))


def heartbeat(number: int = 0) -> pb.SyncRequest:
    """The manager is there, and has heard the agent's heartbeat of that number."""
    return pb.SyncRequest(heartbeat=pb.Heartbeat(number=number))


def watch_usage(seconds: float) -> pb.SyncRequest:
    """Tell what attempts use, every so many seconds; 0 is never."""
    interval = Duration()
    interval.FromTimedelta(dt.timedelta(seconds=seconds))
    return pb.SyncRequest(watch_usage=pb.WatchUsage(interval=interval))


def usage(message: pb.Usage) -> list[AttemptUsage]:
    """What attempts have used."""
    return [
        AttemptUsage(
            item.attempt_id,
            item.clock.seconds + item.clock.nanos / 1e9,
            item.cpu_time.seconds + item.cpu_time.nanos / 1e9 if item.HasField("cpu_time") else None,
            item.memory_bytes if item.HasField("memory_bytes") else None,
        )
        for item in message.attempts
    ]


def node_facts(message: pb.Welcome) -> NodeFacts:
    """What a welcome says."""
    return NodeFacts(
        agent_id=message.agent_id,
        instance=message.instance,
        boot_id=message.boot_id,
        version=message.version,
        architecture=message.architecture,
        capacity={slot: amount for slot, amount in message.capacity.items() if amount >= 0},
        backends=tuple(message.backends),
        underlay_address=message.underlay_address,
        underlay_mtu=message.underlay_mtu,
        attempts=tuple(map(_report, message.attempts)),
        network_session_ids=frozenset(message.network_session_ids),
    )


def node_report(agent_id: str, message: pb.Report) -> NodeReport:
    """What a report says."""
    return NodeReport(
        agent_id=agent_id,
        attempts=tuple(map(_report, message.attempts)),
        removed_attempts=tuple(message.removed_attempt_ids),
        removed_networks=tuple(message.removed_network_session_ids),
    )


def _report(status: pb.AttemptStatus) -> AttemptReport:
    return AttemptReport(
        attempt_id=status.attempt_id,
        state=_STATES.get(status.state, ""),
        exit_code=status.exit_code if status.HasField("exit_code") else None,
        reason=status.reason[:64],
        message=status.message[:1024],
        log_size=status.log_size,
        end_time=status.end_time.ToDatetime(dt.UTC) if status.HasField("end_time") else None,
        image=_image(status.image) if status.HasField("image") else None,
        layers=tuple(
            LayerReport(layer.id[:64], max(0, layer.bytes), max(0, layer.total_bytes), layer.done)
            for layer in status.layers[:_MAX_LAYERS]
        ),
    )


def _image(facts: pb.ImageFacts) -> ImageReport:
    ports = (
        {"name": port.name[:64], "protocol": port.protocol[:16], "ports": list(port.ports[:_MAX_PORTS])}
        for port in facts.service_ports[:_MAX_PORTS]
    )
    digest, identifier = (
        text if _DIGEST.fullmatch(text) else "" for text in (facts.identity.digest, facts.identity.id)
    )
    return ImageReport(digest, identifier, tuple(ports))


def _attempts(attempts: Iterable[DesiredAttempt]) -> list[pb.Attempt]:
    messages = []
    for attempt in attempts:
        grace = Duration()
        grace.FromTimedelta(dt.timedelta(seconds=attempt.grace_seconds))
        fence = Duration()
        fence.FromTimedelta(dt.timedelta(seconds=attempt.fence_seconds))
        messages.append(
            pb.Attempt(
                id=attempt.id,
                session_id=attempt.session_id,
                kernel_id=attempt.kernel_id,
                epoch=attempt.epoch,
                goal=pb.Goal.Value(f"GOAL_{attempt.goal}"),
                stop_grace=grace,
                hostname=attempt.hostname,
                image=attempt.image,
                command=attempt.command,
                environment=attempt.environment,
                slots=attempt.slots,
                networked=attempt.networked,
                image_identity=pb.ImageIdentity(digest=attempt.image_digest, id=attempt.image_id)
                if attempt.image_digest or attempt.image_id
                else None,
                shared_memory=attempt.shared_memory,
                fence_after=fence if attempt.fence_seconds else None,
                egress=attempt.egress,
                mounts=[
                    pb.Mount(root=mount.root, path=mount.path, target=mount.target, writable=mount.writable)
                    for mount in attempt.mounts
                ],
                session_secret=attempt.session_secret,
            )
        )
    return messages


def _networks(networks: Iterable[DesiredNetwork]) -> list[pb.Network]:
    return [
        pb.Network(
            session_id=network.session_id,
            vni=network.vni,
            subnet=network.subnet,
            mtu=network.mtu,
            members=[
                pb.Member(
                    kernel_id=member.kernel_id,
                    hostname=member.hostname,
                    address=member.address,
                    mac=member.mac,
                    underlay_address=member.underlay_address,
                    local=member.local,
                )
                for member in network.members
            ],
        )
        for network in networks
    ]
