"""Agents, resource groups and shares, as messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration

from retinue.manager.api.admin import scheduling_policy
from retinue.manager.api.sessions.idle_convert import policy_message
from retinue.manager.idle.core.policy import stored_policy
from retinue.manager.scheduling.columns import Policy
from retinue.manager.server.etags import etag
from retinue.manager.server.times import timestamp
from retinue.manager.session.core.ipam import check_underlay
from retinue.manager.store.agent_conditions import AgentConditionRecord, conditions_of
from retinue.manager.store.agents import Load
from retinue.manager.store.ledger import Mismatch
from retinue.manager.store.orphans import OrphanRecord
from retinue.manager.store.tables import Agent, DrfShare, ResourceGroup
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.rpc.core.amounts import format_amount

_log = logging.getLogger(__name__)

_CONDITIONS = {
    name.removeprefix("AGENT_CONDITION_TYPE_"): number for name, number in pb.AgentConditionType.items() if number
}


def agent_message(agent: Agent, load: Load) -> pb.Agent:
    """An agent and what is held of it. Of one that this version cannot read, what it can, with a condition that says so."""
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


def _agent_message(agent: Agent, load: Load) -> pb.Agent:
    return pb.Agent(
        id=agent.id,
        resource_group=agent.resource_group,
        state=pb.AgentState.Value(f"AGENT_STATE_{agent.state}"),
        drained=agent.drained,
        address=agent.address,
        architecture=agent.architecture,
        capacity=_amounts(agent.capacity),
        occupied=_amounts(load.occupied),
        kernels=load.kernels,
        version=agent.software_version,
        etag=etag(agent.version),
        create_time=timestamp(agent.create_time),
        heartbeat_time=timestamp(agent.heartbeat_time),
        backends=agent.backends,
        conditions=list(map(_condition, conditions_of(agent))),
    )


def _condition(condition: AgentConditionRecord) -> pb.AgentCondition:
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
        agent_id=orphan.agent_id,
        attempt_id=f"{orphan.kernel_id}.{orphan.epoch}",
        session_id=str(orphan.session_id or ""),
        session_name=orphan.session_name or "",
        owner=orphan.owner or "",
        state=orphan.state,
        end_requested=orphan.end_requested,
        create_time=timestamp(orphan.create_time),
    )


def group_message(group: ResourceGroup) -> pb.ResourceGroup:
    """A resource group; one that is only imagined (version 0) has no etag."""
    return pb.ResourceGroup(
        name=group.name,
        scheduling_policy=scheduling_policy.to_message(
            Policy(group.session_strategy, group.agent_strategy, group.options)
        ),
        owner_weights=group.owner_weights,
        start_timeout=Duration(seconds=group.start_timeout_seconds),
        etag=etag(group.version) if group.version else "",
        egress=pb.EgressPolicy.Value(f"EGRESS_POLICY_{group.egress}"),
        create_time=timestamp(group.create_time),
        mount_roots=[pb.MountRoot(**root) for root in group.mount_roots],
        image_registries=group.image_registries,
        idle_policy=policy_message(stored_policy(group.idle_policy)),
    )


def share_message(share: DrfShare) -> pb.Share:
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
        attempt=mismatch.attempt,
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
