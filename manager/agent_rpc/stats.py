"""Reads the resource use of attempts from their agents."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc.aio

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.manager.agent_rpc.dialer import AgentNotReachedError, Dialer, Purpose
from retinue.rpc import failpoints
from retinue.rpc.errors import broken_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retinue.manager.agent_rpc.relay import AttemptLocation

_log = logging.getLogger(__name__)


class _OfAttempt(Protocol):
    @property
    def attempt_id(self) -> str: ...


_Answer = TypeVar("_Answer", bound=_OfAttempt)


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
        by_agent = _by_agent(locations)
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
        return _asked_for(agent[0], answer.attempts, attempt_ids, self.strays)


async def read_samples(
    dialer: Dialer, locations: Iterable[AttemptLocation], asked: pb.ListUsageSamplesRequest, seconds: float
) -> dict[str, pb.AttemptUsageSamples]:
    """Returns what these attempts used over the last hour, by id; those of agents that do not answer within so many
    seconds, or are of a version that keeps none, are left out. `asked` says which samples.
    """
    by_agent = _by_agent(locations)
    answers = await asyncio.gather(
        *(_ask_samples(dialer, agent, ids, asked, seconds) for agent, ids in by_agent.items())
    )
    return {item.attempt_id: item for answer in answers for item in answer}


async def _ask_samples(
    dialer: Dialer,
    agent: tuple[str, str],
    attempt_ids: list[str],
    asked: pb.ListUsageSamplesRequest,
    seconds: float,
) -> Iterable[pb.AttemptUsageSamples]:
    request = pb.ListUsageSamplesRequest(attempt_ids=attempt_ids)
    request.MergeFrom(asked)
    try:
        async with dialer.stream(*agent, Purpose.OTHER) as channel:
            stub: pb_grpc.AgentServiceAsyncStub = pb_grpc.AgentServiceStub(channel)
            await failpoints.reach("relay.stats", broken_stream)
            answer = await stub.ListUsageSamples(request, timeout=seconds)
    except (grpc.aio.AioRpcError, AgentNotReachedError) as error:
        _log.debug("agent %s sends no samples: %s", agent[0], error)
        return ()
    return _asked_for(agent[0], answer.attempts, attempt_ids, Counter())


def _by_agent(locations: Iterable[AttemptLocation]) -> Mapping[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for location in locations:
        found.setdefault((location.agent_id, location.address), []).append(location.attempt_id)
    return found


def _asked_for(
    agent_id: str, found: Sequence[_Answer], attempt_ids: Sequence[str], strays: Counter[str]
) -> Sequence[_Answer]:
    """Returns what an agent says of the attempts that it was asked for, which are its own: only that is believed."""
    asked = set(attempt_ids)
    kept = [item for item in found if item.attempt_id in asked]
    if number := len(found) - len(kept):
        if not strays[agent_id]:
            _log.error("agent %s reports stats of %d attempts that it was not asked for: ignored", agent_id, number)
        strays[agent_id] += number
    return kept
