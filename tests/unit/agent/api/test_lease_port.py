"""Leases of ports: who asks, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from retinue.agent.api.lease_port import LeaseService, parse_peer
from retinue.agent.errors import NotRunningError, UnknownAttemptError
from retinue.agent.network.errors import PortUnreachableError
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ServiceError


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7"),
        ("ipv6:[::ffff:192.0.2.7]:4711", "192.0.2.7"),
        ("ipv6:%5B2001:DB8::1%5D:4711", "2001:db8::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::1"),
    ],
)
def test_an_address_is_read(peer: str, address: str) -> None:
    assert parse_peer(peer) == address


@pytest.mark.parametrize("peer", ["", "unix:/run/x", "ipv4:192.0.2.7", "ipv6:[::1"])
def test_what_is_no_address_of_a_machine(peer: str) -> None:
    with pytest.raises(PortUnreachableError):
        parse_peer(peer)


class Kernels:
    """Kernels by attempt: a namespace of the node, a virtual machine, and one that has ended."""

    def __init__(self, attempt_id: str) -> None:
        self._attempt_id = attempt_id

    def kernel(self, attempt_id: str) -> Kernels:
        if attempt_id == "unknown.1":
            raise UnknownAttemptError(attempt_id)
        return Kernels(attempt_id)

    def loopback_namespace(self) -> object:
        if self._attempt_id == "ended.1":
            raise NotRunningError("it has ended")
        return None if self._attempt_id == "vm.1" else object()


class Published:
    """Leases that were given."""

    def __init__(self) -> None:
        self.leases: list[tuple[str, int, str, float]] = []

    async def lease(
        self, attempt_id: str, namespace: object, port: int, source: str, seconds: float
    ) -> tuple[str, int]:
        assert namespace is not None
        self.leases.append((attempt_id, port, source, seconds))
        return "192.0.2.1", 31_400

    async def end_lease(self, attempt_id: str, port: int, source: str) -> None:
        self.leases.append((attempt_id, port, source, 0.0))


PEER = "ipv4:192.0.2.7:4711"


async def leased(published: Published, attempt_id: str, port: int, seconds: int, peer: str = PEER) -> Any:
    kernels: Any = Kernels("")
    leases: Any = published
    request = pb.LeasePortRequest(attempt_id=attempt_id, port=port, lease=Duration(seconds=seconds))
    return await LeaseService(kernels, leases).lease(request, peer)


@pytest.mark.asyncio
async def test_a_port_is_leased_to_the_one_that_calls() -> None:
    published = Published()
    found = await leased(published, "k.1", 8888, 60)
    assert (found.address.address, found.address.port) == ("192.0.2.1", 31_400)
    assert not (await leased(published, "k.1", 8888, 0)).HasField("address")
    assert published.leases == [("k.1", 8888, "192.0.2.7", 60.0), ("k.1", 8888, "192.0.2.7", 0.0)]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("attempt_id", "port", "seconds", "peer", "reason"),
    [
        ("k.1", 0, 60, PEER, "INVALID_FIELD"),
        ("k.1", 65_536, 60, PEER, "INVALID_FIELD"),
        ("k.1", 80, -1, PEER, "INVALID_FIELD"),
        ("k.1", 80, 601, PEER, "INVALID_FIELD"),
        ("k.1", 80, 60, "unix:", "PORT_UNREACHABLE"),
        ("vm.1", 80, 60, PEER, "PORT_UNREACHABLE"),
        ("ended.1", 80, 60, PEER, "STATE_FORBIDS"),
        ("unknown.1", 80, 60, PEER, "NOT_FOUND"),
    ],
)
async def test_what_is_not_leased(attempt_id: str, port: int, seconds: int, peer: str, reason: str) -> None:
    published = Published()
    with pytest.raises(ServiceError) as refused:
        await leased(published, attempt_id, port, seconds, peer)
    assert refused.value.reason == reason
    assert published.leases == []
