"""Views of the fleet for users who are not administrators: what they can have of it, and nothing of what others have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.rpc.core.amounts import format_amount, parse_amount

# Whether it takes sessions, and how large it is.
_AGENT_FIELDS = frozenset({"id", "resource_group", "state", "drained", "architecture", "capacity", "backends"})


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
            shown.mount_roots.add(path=root.path, writable=root.writable, projects=own)
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
