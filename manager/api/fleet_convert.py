"""Agents, resource groups and shares, as messages."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration

from manager.api.etags import etag
from manager.api.idle_convert import policy_message
from manager.api.times import timestamp
from manager.lifecycle.idle import stored_policy
from manager.scheduling.amounts import format_amount
from manager.store.agents import Load
from manager.store.ledger import Mismatch
from manager.store.tables import Agent, DrfShare, ResourceGroup
from retinue.manager.v1 import fleet_service_pb2 as pb


def agent_message(agent: Agent, load: Load) -> pb.Agent:
    """An agent and what is held of it."""
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
    )


def group_message(group: ResourceGroup) -> pb.ResourceGroup:
    """A resource group; one that is only imagined (version 0) has no etag."""
    return pb.ResourceGroup(
        name=group.name,
        session_strategy=group.session_strategy,
        agent_strategy=group.agent_strategy,
        options=group.options,
        owner_weights=group.owner_weights,
        start_timeout=Duration(seconds=group.start_timeout_seconds),
        etag=etag(group.version) if group.version else "",
        egress=pb.EgressPolicy.Value(f"EGRESS_POLICY_{group.egress}"),
        create_time=timestamp(group.create_time),
        mount_roots=[pb.MountRoot(**root) for root in group.mount_roots],
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
