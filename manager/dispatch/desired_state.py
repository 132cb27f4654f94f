"""Reads the desired state of each agent from the store: only here do placements become orders."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch.probe_messages import probe_message
from retinue.manager.dispatch.sent_state import DesiredState
from retinue.manager.domain.session.attempts import attempt_id
from retinue.manager.domain.session.bootstrap import with_bootstrap
from retinue.manager.domain.session.ipam import check_underlay, kernel_address
from retinue.manager.domain.session.service_ports import Addresses, port_variables
from retinue.manager.domain.session.spec import (
    DEFAULT_GRACE_SECONDS,
    KernelPlan,
    SessionSpec,
    SftpSpec,
    cluster_environment,
    launcher_environment,
)
from retinue.manager.domain.session.spec_codec import UnreadableSpec, known_part
from retinue.manager.domain.session.ssh_authority import SshAuthority, principal
from retinue.manager.domain.session.ssh_keys import readable_lines
from retinue.manager.domain.session.states import ENDED_OBSERVATIONS, Goal, Observed, SessionType
from retinue.manager.store.placement import attempts, orphans
from retinue.manager.store.postgres.documents import Unreadable
from retinue.manager.supervision import for_links
from retinue.rpc.core.amounts import parse_amount
from retinue.rpc.times import duration
from retinue.types.v1 import isolation_pb2, pull_policy_pb2

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

    from retinue.manager.domain.session.probes import PublishedPort
    from retinue.manager.domain.session.secrets import SessionSecrets
    from retinue.manager.store.placement.attempts import DesiredAttemptRecord, NetworkMemberRecord
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

_GOALS = frozenset(Goal)
# An attempt in one of these is not started again.
_PAST_START = frozenset({Observed.RUNNING, Observed.STOPPING, *ENDED_OBSERVATIONS})
# Agents that a commit affects, each with the sessions it is about; None means that it may be any.
Affected: TypeAlias = Mapping[str, Collection[uuid.UUID] | None]


async def read_desired(
    database: Database,
    agent_id: str,
    secrets: SessionSecrets,
    session_ids: Collection[uuid.UUID] | None = None,
    *,
    fence_seconds: float = 0.0,
    addresses: Addresses | None = None,
) -> DesiredState:
    """All that an agent should have now; with `session_ids`, all of these sessions. Raises ListenerBrokenError.

    The agent stops what may be run on another agent once it is lost after so many seconds without a manager. Main
    kernels know the `addresses` of their ports.
    """
    with for_links("the question what it should run"):
        async with database.transaction() as tx:
            # Orphans are few, and named with the whole set only.
            ending = await orphans.read_ending(tx, agent_id) if session_ids is None else ()
            wanted, members = await attempts.read_desired(tx, agent_id, session_ids)
    rows_of: dict[uuid.UUID, list[DesiredAttemptRecord]] = {}
    for row in wanted:
        rows_of.setdefault(row.session_id, []).append(row)
    built: list[pb.Attempt] = []
    unreadable: set[str] = set()
    for session_id, rows in rows_of.items():
        try:
            if isinstance(spec := rows[0].spec, UnreadableSpec):
                raise ValueError(spec.error)  # what is stored, whatever its type
            built += [attempt(row, spec, secrets, fence_seconds, addresses) for row in rows]
        except Exception as error:  # noqa: BLE001  # logged; what can be read of the others is desired
            _log.error("session %s is left as it is on agent %s: %r", session_id, agent_id, error)
            unreadable.add(str(session_id))
            built += [_unreadable_attempt(row, fence_seconds) for row in rows if _is_past_start(row)]
    removed = frozenset(attempt_id(kernel_id, epoch) for _, kernel_id, epoch in ending)
    networks = _networks(agent_id, members, unreadable)
    return DesiredState({attempt.id: attempt for attempt in built}, networks, removed, frozenset(unreadable))


def _is_past_start(row: DesiredAttemptRecord) -> bool:
    """Returns whether an agent that is sent an attempt does nothing with it but keep it, or end it;
    not so for a goal of another version.
    """
    return row.goal == Goal.STOPPED or (row.goal in _GOALS and row.observed in _PAST_START)


def _unreadable_attempt(row: DesiredAttemptRecord, fence_seconds: float) -> pb.Attempt:
    """Returns an attempt that its agent has, of a session that cannot be read: it has to continue, or to stop,
    as it was sent first.
    """
    return pb.Attempt(
        id=attempt_id(row.kernel_id, row.epoch),
        session_id=str(row.session_id),
        kernel_id=str(row.kernel_id),
        number=row.epoch,
        goal=_goal(row),
        stop_grace=duration(0.0 if row.force else DEFAULT_GRACE_SECONDS),
        hostname=row.hostname,
        networked=row.cluster_size > 1,
        # It may be one that is run on another agent once its agent is lost.
        fence_timeout=_fence(fence_seconds if known_part(row.spec).retry is not None else 0.0),
    )


def _goal(row: DesiredAttemptRecord) -> pb.Goal.ValueType:
    return pb.Goal.Value(f"GOAL_{Goal(row.goal)}")


def _fence(seconds: float) -> Duration | None:
    """Returns the longest time without a manager; None means any."""
    return duration(seconds) if seconds else None


def _time_warning(spec: SessionSpec) -> pb.TimeWarning | None:
    warning, limit = spec.time_warning, spec.time_limit_seconds
    if warning is None or limit is None:
        return None
    after = duration(max(0.0, limit - warning.before_seconds))
    return pb.TimeWarning(signal=warning.signal, after=after, started_only=warning.started_only)


def attempt(
    row: DesiredAttemptRecord,
    spec: SessionSpec,
    secrets: SessionSecrets,
    fence_seconds: float,
    addresses: Addresses | None,
) -> pb.Attempt:
    """Returns an attempt as its agent gets it. Raises ValueError when what is stored of it makes no sense."""
    plan = KernelPlan(row.kernel_id, row.role, row.role_index, row.local_rank, row.hostname)
    kernel = spec.of_role(plan.role)
    command, environment = with_bootstrap(kernel.command, kernel.environment, spec.bootstrap_script)
    own = spec.runs_image_command(row.role)
    networked = row.cluster_size > 1
    if isinstance(row.published, Unreadable):
        raise ValueError(row.published.error)  # a value of a row, whatever its type
    return pb.Attempt(
        id=attempt_id(row.kernel_id, row.epoch),
        session_id=str(row.session_id),
        kernel_id=str(row.kernel_id),
        number=row.epoch,
        goal=_goal(row),
        stop_grace=duration(0.0 if row.force else spec.grace_seconds),
        hostname=row.hostname,
        image=kernel.image,
        command=command,
        environment={
            **launcher_environment(spec, plan),
            **environment,
            **cluster_environment(row.session_id, row.number, spec, plan),
            **_port_variables(row, spec, addresses),
            # Grows with each try: what a kernel writes to other services can be distinguished
            # from what an earlier one wrote.
            "RETINUE_ATTEMPT": str(row.epoch),
        },
        slots=row.slots,
        networked=networked,
        image_identity=pb.ImageIdentity(digest=row.image_digest, id=row.image_id)
        if row.image_digest or row.image_id
        else None,
        shared_memory=parse_amount("mem", kernel.shared_memory) if kernel.shared_memory else 0,
        fence_timeout=_fence(fence_seconds if spec.retry is not None and spec.retry.max_attempts > 1 else 0.0),
        egress=row.egress == "ALLOW",
        published=None if row.published is None else published_port(row.published),
        stop_signal=spec.stop_signal if command or own else "",
        stops_all=spec.type is SessionType.BATCH,
        time_warning=_time_warning(spec) if command or own else None,
        mounts=[
            pb.Mount(
                root=mount.root,
                path=mount.below_root,
                target=mount.target,
                writable=mount.writable,
                uid=mount.uid,
                gid=mount.gid,
            )
            for mount in spec.mounts
        ],
        session_secret=secrets.of(row.session_id, row.epoch) if networked else b"",
        sftp=None if spec.sftp is None else _sftp_server(row, spec.sftp, secrets.ssh),
        isolation=isolation_pb2.Isolation.Value(f"ISOLATION_{spec.isolation_of(row.role)}"),
        working_directory=kernel.working_directory,
        pull_policy=pull_policy_pb2.PullPolicy.Value(f"PULL_POLICY_{kernel.pull_policy or 'UNSPECIFIED'}"),
        image_command=own,
    )


def _port_variables(row: DesiredAttemptRecord, spec: SessionSpec, addresses: Addresses | None) -> dict[str, str]:
    if addresses is None or row.kernel_id != row.session_id:
        return {}
    return port_variables(spec.service_ports, row.session_id, addresses)


def _sftp_server(row: DesiredAttemptRecord, sftp: SftpSpec, authority: SshAuthority) -> pb.SftpServer:
    host = authority.host(row.session_id, row.epoch)
    lines = tuple(dict.fromkeys((*row.owner_keys, *sftp.authorized_keys)))
    keys = readable_lines(lines)
    if len(keys) < len(lines):
        _log.error("%d damaged keys do not open session %s", len(lines) - len(keys), row.session_id)
    return pb.SftpServer(
        host_key=host.key,
        host_certificate=host.certificate,
        user_authority=authority.public_line,
        principal=principal(row.session_id),
        authorized_keys=keys,
        max_file_bytes=sftp.max_file_bytes,
        umask=sftp.umask,
    )


def published_port(published: PublishedPort) -> pb.PublishedPort:
    """Returns a published port as agents get it."""
    return pb.PublishedPort(
        port=published.port,
        startup=None if published.startup is None else probe_message(published.startup),
        readiness=None if published.readiness is None else probe_message(published.readiness),
        liveness=None if published.liveness is None else probe_message(published.liveness),
        metrics_path=published.metrics_path,
    )


def _networks(agent_id: str, rows: Sequence[NetworkMemberRecord], unreadable: set[str]) -> dict[str, pb.Network]:
    """Returns the networks by session; sessions of which one cannot be read become `unreadable`."""
    rows_of: dict[str, list[NetworkMemberRecord]] = {}
    for row in rows:
        rows_of.setdefault(str(row.session_id), []).append(row)
    networks: dict[str, pb.Network] = {}
    for session_id, of_session in rows_of.items():
        try:
            networks[session_id] = _network(agent_id, session_id, of_session)
        except Exception as error:  # noqa: BLE001  # logged; the networks of the others are desired
            _log.error("the network of session %s is left as it is on agent %s: %r", session_id, agent_id, error)
            unreadable.add(session_id)
    return networks


def _network(agent_id: str, session_id: str, rows: Sequence[NetworkMemberRecord]) -> pb.Network:
    members = []
    for row in rows:
        address = kernel_address(row.subnet, row.local_rank)
        members.append(
            pb.Member(
                kernel_id=str(row.kernel_id),
                hostname=row.hostname,
                address=address.address,
                mac=address.mac,
                underlay_address=check_underlay(row.underlay_address) if row.vni else row.underlay_address,
                local=row.agent_id == agent_id,
                agent_id=row.agent_id,
                proves_paths=row.proves_paths,
            )
        )
    of_all = rows[0]
    return pb.Network(
        session_id=session_id,
        vni=of_all.vni,
        subnet=of_all.subnet,
        mtu=of_all.mtu,
        members=members,
        vxlan_port=of_all.vxlan_port,
    )
