"""Asks external strategies, by `retinue.strategy.v1`: one call for a pass and level, each with a deadline; failures are answers too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio

from retinue.manager.scheduler.core.snapshot import Snapshot
from retinue.manager.scheduling.custom import Advice
from retinue.manager.scheduling.shares import total_capacity
from retinue.manager.scheduling.strategies import EXTERNAL, Settings
from retinue.strategy.v1 import strategy_service_pb2 as pb
from retinue.strategy.v1 import strategy_service_pb2_grpc as pb_grpc

# A hundred thousand sessions of many kernels.
_MAX_MESSAGE = 128 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_send_message_length", _MAX_MESSAGE),
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    # A server that comes back is to be found at the next pass.
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Groups are configured by administrators, addresses are meant as they are.
    ("grpc.enable_http_proxy", 0),
)


class ExternalStrategies:
    """The servers that groups name, each with one channel that is kept."""

    def __init__(self) -> None:
        self._channels: dict[tuple[str, bool], grpc.aio.Channel] = {}

    async def close(self) -> None:
        """Ends all channels."""
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def ask(self, group: str, settings: Settings, snapshot: Snapshot) -> Advice | None:
        """Asks the external strategies of a group about a pass; None when none of them is external."""
        levels = (settings.session_strategy == EXTERNAL, settings.agent_strategy == EXTERNAL)
        if not any(levels):
            return None
        waiting = await asyncio.to_thread(_waiting, snapshot)
        stub: pb_grpc.StrategyServiceAsyncStub = pb_grpc.StrategyServiceStub(
            self._channel(settings.address, tls=settings.tls)
        )
        timeout = settings.deadline_ms / 1000
        order = places = None
        order_failure = places_failure = ""
        if levels[0]:
            try:
                answer = await stub.OrderSessions(_order_request(group, snapshot, waiting), timeout=timeout)
                order = list(answer.session_ids)
            except grpc.aio.AioRpcError as error:
                order_failure = _words(error)
        if levels[1]:
            place = {session: position for position, session in enumerate(order or ())}
            waiting.sort(key=lambda session: (-session.priority, place.get(session.id, len(place))))
            try:
                placed = await stub.PlaceSessions(_place_request(group, snapshot, waiting), timeout=timeout)
                places = {each.session_id: list(each.agent_ids) for each in placed.placements}
            except grpc.aio.AioRpcError as error:
                places_failure = _words(error)
        return Advice(order, places, order_failure, places_failure)

    def _channel(self, address: str, *, tls: bool) -> grpc.aio.Channel:
        channel = self._channels.get((address, tls))
        if channel is None:
            if tls:
                channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(), _OPTIONS)
            else:
                channel = grpc.aio.insecure_channel(address, _OPTIONS)
            self._channels[address, tls] = channel
        return channel


def _words(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _waiting(snapshot: Snapshot) -> list[pb.WaitingSession]:
    """Returns those that may be tried. Pure computation of up to a second."""
    queue, offsets = snapshot.queue, snapshot.queue.offsets.tolist()
    requests, priorities, tries = queue.requests.tolist(), queue.priorities.tolist(), queue.tries.tolist()
    waited = [0] * len(tries) if queue.waited is None else queue.waited.tolist()
    wishes = {session: wish for session, wish in queue.wishes.items() if len(wish.designated)}
    return [
        pb.WaitingSession(
            id=queue.ids[position],
            owner=snapshot.owners.names[owner],
            priority=priorities[position],
            kernels=[pb.Kernel(amounts=amounts) for amounts in requests[offsets[position] : offsets[position + 1]]],
            single_node=bool(queue.single_node[position]),
            tries=tries[position],
            waited_seconds=waited[position],
            architecture=queue.architectures.get(position, ""),
            agents=[snapshot.agents.ids[row] for row in wishes[position].designated] if position in wishes else (),
            agents_strict=position in wishes and wishes[position].strict,
        )
        for position, owner in enumerate(queue.owners.tolist())
        if position not in queue.held_back and position not in queue.nominated
    ]


def _order_request(group: str, snapshot: Snapshot, waiting: Sequence[pb.WaitingSession]) -> pb.OrderSessionsRequest:
    owners = snapshot.owners
    return pb.OrderSessionsRequest(
        resource_group=group,
        slots=snapshot.agents.slots,
        capacity=total_capacity(snapshot.agents.capacity),
        sessions=waiting,
        owners=[
            pb.Owner(name=name, weight=weight, held=held)
            for name, weight, held in zip(owners.names, owners.weights.tolist(), owners.held.tolist(), strict=True)
        ],
    )


def _place_request(group: str, snapshot: Snapshot, waiting: Sequence[pb.WaitingSession]) -> pb.PlaceSessionsRequest:
    agents = snapshot.agents
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
