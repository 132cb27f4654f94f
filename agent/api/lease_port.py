"""LeasePort: a port of an attempt, reached at an address of the node by the manager that asks, for a while."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retinue.agent.api.errors import invalid, unknown_attempt
from retinue.agent.api.open_port import PORTS
from retinue.agent.errors import KernelRuntimeError, UnknownAttemptError
from retinue.agent.network.errors import NetworkError, PortsExhaustedError, PortUnreachableError
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc import times
from retinue.rpc.core.errors import Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason

if TYPE_CHECKING:
    from retinue.agent.network.publisher import Publisher
    from retinue.agent.runtime.contract import Runtime

MAX_LEASE = 600.0
"""Seconds."""
_PEER = re.compile(r"ipv4:([0-9.]+):\d+|ipv6:(?:\[|%5B)([0-9a-fA-F:.]+)(?:%25[^\]]*)?(?:\]|%5D):\d+")


class LeaseService:
    """Leases of ports of an agent."""

    def __init__(self, runtime: Runtime, publisher: Publisher) -> None:
        """Leases nothing yet."""
        self._runtime = runtime
        self._publisher = publisher

    async def lease(self, request: pb.LeasePortRequest, peer: str) -> pb.LeasePortResponse:
        """Lets the machine of `peer`, as gRPC writes it, reach a port, or no longer."""
        if request.port not in PORTS:
            raise invalid("port", f"must be from {PORTS.start} to {PORTS.stop - 1}")
        seconds = times.seconds(request.lease)
        if not 0 <= seconds <= MAX_LEASE:
            raise invalid("lease", f"must be from 0 to {MAX_LEASE:.0f} s")
        try:
            source = parse_peer(peer)
            if seconds == 0:
                await self._publisher.end_lease(request.attempt_id, request.port, source)
                return pb.LeasePortResponse()
            namespace = self._runtime.kernel(request.attempt_id).loopback_namespace()
            if namespace is None:
                raise PortUnreachableError(f"attempt {request.attempt_id} is a virtual machine")
            address, number = await self._publisher.lease(request.attempt_id, namespace, request.port, source, seconds)
        except UnknownAttemptError as error:
            raise unknown_attempt(request.attempt_id) from error
        except KernelRuntimeError as error:
            message = f"attempt {request.attempt_id} does not run"
            raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STATE_FORBIDS, message) from error
        except PortUnreachableError as error:
            raise ServiceError(Code.FAILED_PRECONDITION, "PORT_UNREACHABLE", str(error)) from error
        except PortsExhaustedError as error:
            raise ServiceError(Code.RESOURCE_EXHAUSTED, "NO_PORT_LEFT", str(error)) from error
        except NetworkError as error:
            raise ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, str(error)) from error
        return pb.LeasePortResponse(address=pb.PublishedAddress(address=address, port=number))


def parse_peer(peer: str) -> str:
    """Returns the address in gRPC's text for a peer. Raises PortUnreachableError when it has none."""
    found = _PEER.fullmatch(peer)
    if found is None:
        raise PortUnreachableError(f"{peer} is no address of a machine")
    address = found[1] or found[2]
    # A socket of both versions says of an IPv4 address that it is one.
    return address.lower().removeprefix("::ffff:")
