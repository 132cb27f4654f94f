"""Asks external strategies, by `retinue.strategy.v1`: one call for a pass and level, each with a deadline;
failures are answers too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from retinue.manager.scheduler.external import convert
from retinue.manager.scheduling.custom import Advice
from retinue.manager.scheduling.strategies import EXTERNAL, Settings
from retinue.strategy.v1 import strategy_service_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from retinue.manager.scheduling.columns import Agents, Owners, Queue

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

    async def ask(self, group: str, settings: Settings, agents: Agents, owners: Owners, queue: Queue) -> Advice | None:
        """Asks the external strategies of a group about a pass; None when none of them is external."""
        levels = (settings.session_strategy == EXTERNAL, settings.agent_strategy == EXTERNAL)
        if not any(levels):
            return None
        waiting = await asyncio.to_thread(convert.waiting_sessions, agents, owners, queue)
        stub: pb_grpc.StrategyServiceAsyncStub = pb_grpc.StrategyServiceStub(
            self._channel(settings.address, tls=settings.tls)
        )
        timeout = settings.deadline_ms / 1000
        order = placements = None
        order_failure = placements_failure = ""
        if levels[0]:
            try:
                request = convert.order_request(group, agents, owners, waiting)
                order = convert.order_of(await stub.OrderSessions(request, timeout=timeout))
            except grpc.aio.AioRpcError as error:
                order_failure = _words(error)
        if levels[1]:
            try:
                choice = convert.place_request(group, agents, convert.in_order(waiting, order))
                placements = convert.placements_of(await stub.PlaceSessions(choice, timeout=timeout))
            except grpc.aio.AioRpcError as error:
                placements_failure = _words(error)
        return Advice(order, placements, order_failure, placements_failure)

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
