"""Messages to agents, made of the plain values of `retinue.manager.session.core.attempts`."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.session.core.attempts import Desired, DesiredAttempt, DesiredNetwork, Difference

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
_Message = TypeVar("_Message")


def hello(incarnation: str, term: int, agent_id: str, heartbeat_seconds: float) -> pb.SyncRequest:
    """Opens a stream."""
    interval = Duration()
    interval.FromTimedelta(dt.timedelta(seconds=heartbeat_seconds))
    return pb.SyncRequest(
        hello=pb.Hello(incarnation=incarnation, term=term, agent_id=agent_id, heartbeat_interval=interval)
    )


def snapshot(
    desired: Desired,
    protected: Iterable[str] = (),
    removed_attempts: Iterable[str] = (),
    removed_networks: Iterable[str] = (),
) -> pb.SyncRequest:
    """The whole desired set, the addresses that no kernel may reach, and the attempts and networks of the welcome that are not to exist."""
    return pb.SyncRequest(
        snapshot=pb.Snapshot(
            attempts=_attempts(desired.attempts.values()),
            networks=_networks(desired.networks.values()),
            protected_addresses=sorted(protected),
            removed_attempt_ids=sorted(removed_attempts),
            removed_network_session_ids=sorted(removed_networks),
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


def _attempts(attempts: Iterable[DesiredAttempt]) -> list[pb.Attempt]:
    return _readable("attempt", attempts, lambda attempt: attempt.id, _attempt)


def _networks(networks: Iterable[DesiredNetwork]) -> list[pb.Network]:
    return _readable("network of session", networks, lambda network: network.session_id, _network)


def _readable(
    kind: str, values: Iterable[_Value], name: Callable[[_Value], str], convert: Callable[[_Value], _Message]
) -> list[_Message]:
    """Returns the messages of the values of which there can be one: of another, the agent keeps what it was sent before."""
    found = []
    for value in values:
        try:
            found.append(convert(value))
        except Exception as error:  # noqa: BLE001  # logged; whatever is stored of one, the others are sent
            _log.error("%s %s is not sent to its agent: %r", kind, name(value), error)
    return found


def _attempt(attempt: DesiredAttempt) -> pb.Attempt:
    grace, fence = Duration(), Duration()
    grace.FromTimedelta(dt.timedelta(seconds=attempt.grace_seconds))
    fence.FromTimedelta(dt.timedelta(seconds=attempt.fence_seconds))
    return pb.Attempt(
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
        fence_timeout=fence if attempt.fence_seconds else None,
        egress=attempt.egress,
        mounts=[
            pb.Mount(root=mount.root, path=mount.path, target=mount.target, writable=mount.writable)
            for mount in attempt.mounts
        ],
        session_secret=attempt.session_secret,
    )


def _network(network: DesiredNetwork) -> pb.Network:
    return pb.Network(
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
