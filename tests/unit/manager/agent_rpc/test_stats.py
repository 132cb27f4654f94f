"""Stats of attempts: an agent is believed only about what it was asked for, and delays no other answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.agent_rpc.dialer import Dialer
from retinue.manager.agent_rpc.relay import AttemptLocation
from retinue.manager.agent_rpc.stats import StatsReader, read_samples
from retinue.types.v1.usage_pb2 import ResourceUsage
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"].full_name
OWN, OTHERS, UNKNOWN = "honest.1", "rogue.1", "nobody.7"


class Agent:
    """Answers with these counters, whatever it is asked for."""

    def __init__(self, **memory: int) -> None:
        self.memory = memory
        self.asked: list[list[str]] = []
        self.silent = False
        self.ends: grpc.StatusCode | None = None
        self.keeps_samples = True
        self.listed: list[pb.ListUsageSamplesRequest] = []

    async def list_samples(self, request: pb.ListUsageSamplesRequest, _: Any) -> pb.ListUsageSamplesResponse:
        self.listed.append(request)
        names = {"own": OWN, "others": OTHERS, "unknown": UNKNOWN}
        return pb.ListUsageSamplesResponse(
            attempts=[
                pb.AttemptUsageSamples(attempt_id=names[name], samples=[ResourceUsage(memory_bytes=size)])
                for name, size in sorted(self.memory.items())
            ]
        )

    async def read_stats(self, request: pb.ReadStatsRequest, context: Any) -> pb.ReadStatsResponse:
        self.asked.append(sorted(request.attempt_ids))
        if self.silent:
            await asyncio.Event().wait()
        if self.ends is not None:
            await context.abort(self.ends)
        names = {"own": OWN, "others": OTHERS, "unknown": UNKNOWN}
        return pb.ReadStatsResponse(
            attempts=[
                pb.AttemptStats(attempt_id=names[name], usage=ResourceUsage(memory_bytes=size))
                for name, size in sorted(self.memory.items())
            ]
        )


class Plain(Dialer):
    """Dials without TLS."""

    def __init__(self) -> None:
        super().__init__(grpc.ssl_channel_credentials)
        self.opened = 0

    def open(self, agent_id: str, address: str) -> grpc.aio.Channel:
        self.opened += 1
        return grpc.aio.insecure_channel(address)


@contextlib.asynccontextmanager
async def serving(*agents: Agent) -> AsyncIterator[list[str]]:
    """The addresses of these agents."""
    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for agent in agents:
            server = grpc.aio.server()
            method = grpc.unary_unary_rpc_method_handler(
                agent.read_stats, pb.ReadStatsRequest.FromString, pb.ReadStatsResponse.SerializeToString
            )
            listing = grpc.unary_unary_rpc_method_handler(
                agent.list_samples,
                pb.ListUsageSamplesRequest.FromString,
                pb.ListUsageSamplesResponse.SerializeToString,
            )
            methods = {"ReadStats": method} | ({"ListUsageSamples": listing} if agent.keeps_samples else {})
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            stack.push_async_callback(server.stop, None)
        yield addresses


@contextlib.asynccontextmanager
async def reading(dialer: Dialer) -> AsyncIterator[StatsReader]:
    reader = StatsReader(dialer)
    try:
        yield reader
    finally:
        await reader.close()


def memory(found: dict[str, pb.AttemptStats]) -> dict[str, int]:
    return {key: stats.usage.memory_bytes for key, stats in found.items()}


async def test_counters_of_others_change_nothing_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    honest, rogue = Agent(own=1), Agent(own=666, others=2, unknown=667)
    async with serving(honest, rogue) as (first, second), reading(Plain()) as reader:
        places = [AttemptLocation("honest", first, OWN), AttemptLocation("rogue", second, OTHERS)]
        with caplog.at_level(logging.ERROR):
            # In either order: which answer is looked at last does not matter.
            for order in (places, places[::-1], places):
                assert memory(await reader.read(order, NEVER)) == {OWN: 1, OTHERS: 2}
        assert reader.strays == {"rogue": 6}
        assert honest.asked == [[OWN]] * 3
        assert rogue.asked == [[OTHERS]] * 3
    # Once, however often it does so.
    (record,) = [record for record in caplog.records if record.name == "retinue.manager.agent_rpc.stats"]
    assert record.getMessage() == "agent rogue reports stats of 2 attempts that it was not asked for: ignored"


async def test_an_agent_without_the_attempt_says_nothing_of_it() -> None:
    rogue = Agent(own=666)
    async with serving(rogue) as (address,), reading(Plain()) as reader:
        assert await reader.read([AttemptLocation("rogue", address, OTHERS)], NEVER) == {}
        assert reader.strays == {"rogue": 1}


async def test_an_agent_that_does_not_answer_costs_others_nothing() -> None:
    honest, broken = Agent(own=1), Agent(others=2)
    broken.ends = grpc.StatusCode.UNAVAILABLE
    dialer = Plain()
    async with serving(honest, broken) as (first, second), reading(dialer) as reader:
        places = [AttemptLocation("honest", first, OWN), AttemptLocation("broken", second, OTHERS)]
        assert memory(await reader.read(places, NEVER)) == {OWN: 1}
        # Connections are kept, and closed when nothing is asked of an agent any more.
        assert memory(await reader.read(places[:1], NEVER)) == {OWN: 1}
        assert dialer.opened == 2
        broken.ends = None
        assert memory(await reader.read(places, NEVER)) == {OWN: 1, OTHERS: 2}
        assert dialer.opened == 3


async def test_an_answer_is_waited_for_so_long_only() -> None:
    silent = Agent(own=1)
    silent.silent = True
    async with serving(silent) as (address,), reading(Plain()) as reader:
        assert await reader.read([AttemptLocation("silent", address, OWN)], 0.1) == {}


async def test_samples_are_those_of_the_agents_that_keep_them() -> None:
    honest, rogue, former = Agent(own=1), Agent(own=666, others=2), Agent(unknown=3)
    former.keeps_samples = False
    async with serving(honest, rogue, former) as (first, second, third):
        places = [
            AttemptLocation("honest", first, OWN),
            AttemptLocation("rogue", second, OTHERS),
            AttemptLocation("former", third, UNKNOWN),
        ]
        dialer, asked = Plain(), pb.ListUsageSamplesRequest(interval=Duration(seconds=30))
        try:
            found = await read_samples(dialer, places, asked, NEVER)
        finally:
            await dialer.close()
    assert {key: [item.memory_bytes for item in value.samples] for key, value in found.items()} == {
        OWN: [1],
        OTHERS: [2],
    }
    assert honest.listed == [pb.ListUsageSamplesRequest(attempt_ids=[OWN], interval=Duration(seconds=30))]
