"""Reads the resource use of attempts from their agents."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

import grpc.aio

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.manager.agent_rpc.dialer import Dialer
from retinue.manager.agent_rpc.relay import AttemptLocation
from retinue.rpc import failpoints
from retinue.rpc.errors import broken_stream

_log = logging.getLogger(__name__)


class StatsReader:
    """Asks agents again and again, over connections that are kept between two times. Close it."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}
        self.strays: Counter[str] = Counter()
        """By agent, how often it reported on an attempt that it was not asked for."""

    async def read(self, locations: Iterable[AttemptLocation], seconds: float) -> dict[str, pb.AttemptStats]:
        """Returns what these attempts use, by id; those of agents that do not answer within
        so many seconds are left out.
        """
        by_agent: dict[tuple[str, str], list[str]] = {}
        for location in locations:
            by_agent.setdefault((location.agent_id, location.address), []).append(location.attempt_id)
        for gone in self._channels.keys() - by_agent.keys():
            await self._channels.pop(gone).close()
        answers = await asyncio.gather(*(self._ask(agent, ids, seconds) for agent, ids in by_agent.items()))
        return {stats.attempt_id: stats for answer in answers for stats in answer}

    async def close(self) -> None:
        """Closes the connections."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close()

    async def _ask(self, agent: tuple[str, str], attempt_ids: list[str], seconds: float) -> Iterable[pb.AttemptStats]:
        channel = self._channels.get(agent)
        if channel is None:
            channel = self._channels[agent] = self._dialer.open(*agent)
        stub: pb_grpc.AgentServiceAsyncStub = pb_grpc.AgentServiceStub(channel)
        try:
            await failpoints.reach("relay.stats", broken_stream)
            answer = await stub.ReadStats(pb.ReadStatsRequest(attempt_ids=attempt_ids), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            _log.debug("agent %s sends no stats: %s", agent[0], error.code().name)
            return ()
        # An agent is believed about what it was asked for, which is its own.
        asked = set(attempt_ids)
        found = [stats for stats in answer.attempts if stats.attempt_id in asked]
        if strays := len(answer.attempts) - len(found):
            if not self.strays[agent[0]]:
                _log.error("agent %s reports stats of %d attempts that it was not asked for: ignored", agent[0], strays)
            self.strays[agent[0]] += strays
        return found
