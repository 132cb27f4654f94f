"""Translates between the columns of a pass and the messages of `retinue.strategy.v1`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from retinue.manager.scheduling.shares import total_capacity
from retinue.strategy.v1 import strategy_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.scheduling.columns import Agents, Owners, Queue


def waiting_sessions(agents: Agents, owners: Owners, queue: Queue) -> list[pb.WaitingSession]:
    """Returns the sessions that may be tried, in the order of the queue. Up to a second of computation."""
    offsets = queue.offsets.tolist()
    requests, priorities, tries = queue.requests.tolist(), queue.priorities.tolist(), queue.tries.tolist()
    waited = [0] * len(tries) if queue.waited is None else queue.waited.tolist()
    wishes = {session: wish for session, wish in queue.wishes.items() if len(wish.designated)}
    return [
        pb.WaitingSession(
            id=queue.ids[position],
            owner=owners.names[owner],
            priority=priorities[position],
            kernels=[pb.Kernel(amounts=amounts) for amounts in requests[offsets[position] : offsets[position + 1]]],
            single_node=bool(queue.single_node[position]),
            tries=tries[position],
            waited=Duration(seconds=waited[position]),
            architecture=queue.architectures.get(position, ""),
            agents=[agents.ids[row] for row in wishes[position].designated] if position in wishes else (),
            agents_strict=position in wishes and wishes[position].strict,
        )
        for position, owner in enumerate(queue.owners.tolist())
        if position not in queue.held_back and position not in queue.nominated
    ]


def in_order(waiting: Sequence[pb.WaitingSession], order: Sequence[str] | None) -> list[pb.WaitingSession]:
    """Returns the sessions by priority, and within one by a strategy's order; those that it left out come last."""
    position_of = {session: position for position, session in enumerate(order or ())}
    return sorted(waiting, key=lambda session: (-session.priority, position_of.get(session.id, len(position_of))))


def order_request(
    group: str, agents: Agents, owners: Owners, waiting: Sequence[pb.WaitingSession]
) -> pb.OrderSessionsRequest:
    """Returns the request for the order of the sessions of a group."""
    return pb.OrderSessionsRequest(
        resource_group=group,
        slots=agents.slots,
        capacity=total_capacity(agents.capacity),
        sessions=waiting,
        owners=[
            pb.Owner(name=name, weight=weight, held=held)
            for name, weight, held in zip(owners.names, owners.weights.tolist(), owners.held.tolist(), strict=True)
        ],
    )


def place_request(group: str, agents: Agents, waiting: Sequence[pb.WaitingSession]) -> pb.PlaceSessionsRequest:
    """Returns the request for the agents of the sessions of a group."""
    free = (agents.capacity - agents.used).clip(min=0).tolist()
    return pb.PlaceSessionsRequest(
        resource_group=group,
        slots=agents.slots,
        sessions=waiting,
        agents=[
            pb.Agent(
                id=name,
                capacity=capacity,
                free=left,
                architecture=architecture,
                kernels=kernels,
                schedulable=schedulable,
            )
            for name, capacity, left, architecture, kernels, schedulable in zip(
                agents.ids,
                agents.capacity.tolist(),
                free,
                agents.architectures,
                agents.kernels.tolist(),
                agents.schedulable.tolist(),
                strict=True,
            )
        ],
    )


def order_of(response: pb.OrderSessionsResponse) -> list[str]:
    """Returns the ids of sessions in the order of an answer."""
    return list(response.session_ids)


def placements_of(response: pb.PlaceSessionsResponse) -> dict[str, list[str]]:
    """Returns the agents of each session of an answer, by the ids of sessions."""
    return {each.session_id: list(each.agent_ids) for each in response.placements}
