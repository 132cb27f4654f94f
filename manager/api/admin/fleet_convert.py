"""Agents, resource groups and shares, as messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from retinue.manager.api.admin import scheduling_policy
from retinue.manager.api.sessions.idle_convert import policy_message
from retinue.manager.api.sessions.isolation_convert import isolation_number
from retinue.manager.api.sessions.pull_policy_convert import pull_policy_number
from retinue.manager.domain.session.images import PullPolicy
from retinue.manager.domain.session.ipam import check_underlay
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.server.etags import etag
from retinue.manager.store.postgres.documents import Unreadable
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1 import session_pb2
from retinue.rpc.core.amounts import format_amount, parse_amount
from retinue.rpc.times import timestamp
from retinue.rpc.version import builds_differ, software_version
from retinue.types.v1 import runtime_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from retinue.manager.domain.session.attempts import AgentCondition
    from retinue.manager.domain.session.mounts import MountRoot
    from retinue.manager.store.fleet.agents import AgentRecord, Load
    from retinue.manager.store.fleet.groups import GroupRecord, ShareRecord
    from retinue.manager.store.fleet.routers import RouterRecord
    from retinue.manager.store.placement.ledger import Mismatch
    from retinue.manager.store.placement.orphans import OrphanRecord

_log = logging.getLogger(__name__)

_CONDITIONS = {
    name.removeprefix("AGENT_CONDITION_TYPE_"): number for name, number in pb.AgentConditionType.items() if number
}


def agent_message(agent: AgentRecord, load: Load) -> pb.Agent:
    """An agent and what is held of it. Of one that this version cannot read, what it can,
    with a condition that says so.
    """
    try:
        message = _agent_message(agent, load)
        check_underlay(agent.underlay_address)
    except Exception as error:  # noqa: BLE001  # said in the message
        _log.warning("agent %s is shown in part: %r", agent.id, error)
        message = pb.Agent(
            id=agent.id, resource_group=agent.resource_group, drained=agent.drained, etag=etag(agent.version)
        )
        message.conditions.add(
            type=pb.AGENT_CONDITION_TYPE_UNREADABLE,
            message="written by another version of the manager, or damaged: nothing is placed on it",
            blocks_placement=True,
        )
    return message


def _agent_message(agent: AgentRecord, load: Load) -> pb.Agent:
    message = pb.Agent(
        id=agent.id,
        resource_group=agent.resource_group,
        state=pb.AgentState.Value(f"AGENT_STATE_{agent.state}"),
        drained=agent.drained,
        drain_deadline_time=timestamp(agent.drain_deadline_time),
        address=agent.address,
        architecture=agent.architecture,
        capacity=_amounts(agent.capacity),
        occupied=_amounts(load.occupied),
        kernels=load.kernels,
        version=agent.software_version,
        etag=etag(agent.version),
        create_time=timestamp(agent.create_time),
        heartbeat_time=timestamp(agent.heartbeat_time),
        available_runtimes=agent.backends,
        runtimes=[
            runtime_pb2.RuntimeStatus(name=status.name, available=status.available, message=status.message)
            for status in agent.runtimes
        ],
        conditions=list(map(_condition, agent.conditions)),
    )
    if builds_differ(agent.software_version, own := software_version()):
        message.conditions.add(
            type=pb.AGENT_CONDITION_TYPE_VERSION_DIFFERS,
            message=f"runs {agent.software_version}, and this manager {own}: an upgrade is under way, or was not finished",
        )
    return message


def _condition(condition: AgentCondition | Unreadable) -> pb.AgentCondition:
    if isinstance(condition, Unreadable):
        return pb.AgentCondition(type=pb.AGENT_CONDITION_TYPE_UNREADABLE, message=condition.error)
    return pb.AgentCondition(
        type=_CONDITIONS.get(condition.type, pb.AGENT_CONDITION_TYPE_OTHER),
        reason=condition.reason,
        message=condition.message,
        since_time=timestamp(condition.since),
        blocks_placement=condition.blocks,
    )


def orphan_message(orphan: OrphanRecord) -> pb.Orphan:
    """Returns an attempt that an agent runs and the database does not know."""
    return pb.Orphan(
        agent=orphan.agent_id,
        attempt_id=f"{orphan.kernel_id}.{orphan.epoch}",
        session_id=str(orphan.session_id or ""),
        session_name=orphan.session_name or "",
        owner=orphan.owner or "",
        state=orphan.state,
        end_requested=orphan.end_requested,
        create_time=timestamp(orphan.create_time),
    )


def router_message(router: RouterRecord) -> pb.Router:
    """Returns a router."""
    return pb.Router(
        id=router.id,
        state=pb.RouterState.Value(f"ROUTER_STATE_{router.state}"),
        address=router.address,
        url=router.url,
        version=router.software_version,
        create_time=timestamp(router.create_time),
        heartbeat_time=None if router.heartbeat_time is None else timestamp(router.heartbeat_time),
    )


def group_message(group: GroupRecord) -> pb.ResourceGroup:
    """A resource group; one that is only imagined (version 0) has no etag."""
    return pb.ResourceGroup(
        name=group.name,
        scheduling_policy=scheduling_policy.to_message(group.scheduling),
        owner_weights=group.owner_weights,
        start_timeout=Duration(seconds=group.start_timeout_seconds),
        max_grace=Duration(seconds=group.max_grace_seconds),
        etag=etag(group.version) if group.version else "",
        egress=pb.EgressPolicy.Value(f"EGRESS_POLICY_{group.egress}"),
        create_time=timestamp(group.create_time),
        mount_roots=list(map(_mount_root, group.mount_roots)),
        image_registries=group.image_registries,
        session_types=[session_pb2.SessionType.Value(f"SESSION_TYPE_{name}") for name in group.session_types],
        isolations=[isolation_number(Isolation(name)) for name in group.isolations],
        default_isolation=isolation_number(Isolation(group.default_isolation) if group.default_isolation else None),
        default_pull_policy=pull_policy_number(
            PullPolicy(group.default_pull_policy) if group.default_pull_policy else None
        ),
        mass_loss_percent=group.mass_loss_percent,
        mass_loss_agents=group.mass_loss_agents,
        mass_loss_window=Duration(seconds=group.mass_loss_window_seconds),
        idle_policy=policy_message(group.idle_policy),
    )


def share_message(share: ShareRecord) -> pb.Share:
    """An owner's share."""
    return pb.Share(
        owner=share.owner,
        weight=share.weight,
        dominant_slot=share.dominant_slot,
        numerator=share.numerator,
        denominator=share.denominator,
        held=_amounts(share.held),
    )


def mismatch_message(mismatch: Mismatch) -> pb.LedgerMismatch:
    """A difference that was found in the ledger, with amounts in words."""
    return pb.LedgerMismatch(
        kind=pb.LedgerKind.Value(f"LEDGER_KIND_{mismatch.kind}"),
        resource_group=mismatch.resource_group,
        agent=mismatch.agent,
        owner=mismatch.owner,
        attempt_id=mismatch.attempt,
        slot=mismatch.slot,
        recorded=_entry(mismatch.slot, mismatch.recorded),
        derived=_entry(mismatch.slot, mismatch.derived),
    )


def _entry(slot: str, value: int | str | None) -> str:
    if value is None:
        return "nothing"
    return format_amount(slot, value) if isinstance(value, int) else value


def _amounts(stored: Mapping[str, int]) -> dict[str, str]:
    return {slot: format_amount(slot, amount) for slot, amount in stored.items()}


# Whether it takes sessions, and how large it is.
_AGENT_FIELDS = frozenset(
    {"id", "resource_group", "state", "drained", "architecture", "capacity", "available_runtimes"}
)


def agent_for_user(agent: pb.Agent) -> pb.Agent:
    """Returns an agent without its address, its load, and how it does, but for conditions by their types."""
    shown = pb.Agent(
        conditions=[
            pb.AgentCondition(type=condition.type, blocks_placement=condition.blocks_placement)
            for condition in agent.conditions
        ]
    )
    for field, value in agent.ListFields():
        if field.name not in _AGENT_FIELDS:
            continue
        if field.is_repeated:
            getattr(shown, field.name).MergeFrom(value)
        else:
            setattr(shown, field.name, value)
    return shown


def _mount_root(root: MountRoot) -> pb.MountRoot:
    owner = pb.MountOwner(account=root.of_account, uid=root.uid, gid=root.gid)
    has_owner = root.of_account or root.uid
    return pb.MountRoot(
        path=root.path, writable=root.writable, projects=root.projects, owner=owner if has_owner else None
    )


def group_for_user(group: pb.ResourceGroup, user: str, projects: Collection[str]) -> pb.ResourceGroup:
    """Returns a group without the weights of other owners and what only other projects may mount."""
    shown = pb.ResourceGroup()
    shown.CopyFrom(group)
    shown.ClearField("owner_weights")
    if user in group.owner_weights:
        shown.owner_weights[user] = group.owner_weights[user]
    shown.ClearField("mount_roots")
    for root in group.mount_roots:
        own = [project for project in root.projects if project in projects]
        if own or not root.projects:
            shown.mount_roots.add().CopyFrom(root)
            shown.mount_roots[-1].projects[:] = own
    return shown


def shares_for_user(shares: Iterable[pb.Share], user: str) -> pb.ListSharesResponse:
    """Returns a user's own share, and what all others hold together."""
    response, others = pb.ListSharesResponse(), dict[str, int]()
    for share in shares:
        if share.owner == user:
            response.shares.append(share)
            continue
        for slot, amount in share.held.items():
            others[slot] = others.get(slot, 0) + parse_amount(slot, amount)
    response.held_by_others.update({slot: format_amount(slot, amount) for slot, amount in others.items()})
    return response
