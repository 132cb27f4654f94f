"""Leases of ports: when an agent is asked again."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.agent_rpc.relay import AttemptLocation, Forwarder
from retinue.manager.gateway import leased_ports
from retinue.manager.gateway.access_cache import Access, AccessCache
from retinue.manager.gateway.core.rules import Target
from retinue.manager.gateway.leased_ports import RENEW_SECONDS, LeasedPorts

pytestmark = pytest.mark.asyncio

LOCATION = AttemptLocation("a", "192.0.2.7:7441", "k.1")
ACCESS = Access(b"1", "ada", Target(uuid.UUID(int=7), 8080), over=False, location=LOCATION, address="")


@dataclass
class Agent:
    """One that leases a port each time that it is asked."""

    asked: int = 0
    now: float = 100.0
    known: dict[bytes, Access] = field(default_factory=lambda: {ACCESS.hash: ACCESS})

    @property
    def without_activity(self) -> Agent:
        return self

    async def call(self, *_arguments: Any) -> pb.LeasePortResponse:
        self.asked += 1
        return pb.LeasePortResponse(address=pb.PublishedAddress(address="192.0.2.7", port=31_400))


async def test_a_connection_that_came_to_the_relay_has_the_port_leased_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listens(_address: str, _port: int) -> bool:
        return True

    monkeypatch.setattr(leased_ports, "listens", listens)
    agent = Agent()
    cache = cast("AccessCache", type("Cache", (), {"now": staticmethod(agent.known.get)}))
    ports = LeasedPorts(cast("Forwarder", agent), cache, lambda: agent.now, lambda _key, _leased: None)
    await asyncio.gather(ports.use(ACCESS), ports.use(ACCESS))
    assert agent.asked == 1
    agent.now += RENEW_SECONDS / 3
    await ports.use(ACCESS)
    assert agent.asked == 1
    ports.relayed(ACCESS.hash)
    await ports.use(ACCESS)
    assert agent.asked == 2
    # Where the program refuses connections, each comes to the relay: the agent is not asked for each.
    ports.relayed(ACCESS.hash)
    await ports.use(ACCESS)
    assert agent.asked == 2
    agent.now += RENEW_SECONDS
    await ports.use(ACCESS)
    assert agent.asked == 3
