"""Connections to a port by the way that carries most: a tunnel of the manager's gateway where it is reached from
here, else the node, or the manager's port to it, else the stream of the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client.errors import CallError
from retinue.client.kernel.direct_connection import encrypted
from retinue.client.kernel.tunnel import TunnelConnection
from retinue.client.transport.channel import parse_endpoints
from retinue.rpc.tls_socket import tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from retinue.client.kernel.direct_connection import DirectConnection
    from retinue.client.kernel.port import PortConnection
    from retinue.client.sessions import Session

# For a tunnel and a connection through it, and after none was to be had.
_TRY_SECONDS, _PAUSE_SECONDS = 2.0, 10.0


@dataclass(frozen=True, slots=True)
class _Tunnel:
    """A tunnel that is open: the gateway's addresses, the name to ask for, and the context with its key."""

    addresses: tuple[tuple[str, int], ...]
    name: str
    context: ssl.SSLContext


class TunnelledPort:
    """A port of a session; belongs on one event loop."""

    def __init__(self, session: Session, port: str, endpoint: str) -> None:
        """`endpoint` is where the manager is reached."""
        self._session = session
        self._port = port
        self._endpoint = endpoint
        self._managers = [host for host, _ in parse_endpoints(endpoint)]
        self._tunnel: _Tunnel | None = None
        self._asking = asyncio.Lock()
        self._not_before = 0.0

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[TunnelConnection | DirectConnection | PortConnection]:
        """Connects, for as long as the block lasts. Raises CallError."""
        direct = await self._direct()
        if direct is None:
            async with (
                self._session.open_port(self._port, direct=True) as connection,
                encrypted(connection, self._endpoint) as past,
            ):
                yield past or connection
            return
        async with direct:
            try:
                yield direct
            except CallError:
                if not direct.received:
                    # The port may have refused the connection: then the manager says so.
                    self._tunnel = None
                    async with self._session.open_port(self._port):
                        pass
                raise

    async def _direct(self) -> TunnelConnection | None:
        """Returns a connection past the manager; None when there is none within two seconds. Raises nothing."""
        now = asyncio.get_running_loop().time
        if now() < self._not_before:
            return None
        with contextlib.suppress(CallError, OSError, TimeoutError):
            async with asyncio.timeout(_TRY_SECONDS):
                former = self._tunnel
                if former is not None and (connection := await _connected(former)) is not None:
                    return connection
                # It may have ended, or the port may refuse connections.
                async with self._asking:
                    if self._tunnel is former:
                        self._tunnel = None
                        self._tunnel = await self._open()
                if self._tunnel is not None and (connection := await _connected(self._tunnel)) is not None:
                    return connection
        self._not_before = now() + _PAUSE_SECONDS
        return None

    async def _open(self) -> _Tunnel | None:
        """Asks for a tunnel. Raises CallError, OSError."""
        made = await self._session.create_port_tunnel(self._port)
        addresses = await self._addresses(made.host, made.port)
        return _Tunnel(addresses, made.server_name, tls_context(made.identity)) if addresses else None

    async def _addresses(self, host: str, port: int) -> tuple[tuple[str, int], ...]:
        """Returns where a gateway may be: at its name, else on the manager's machine. Raises OSError."""
        local = host.rpartition(".")[2] == "localhost"
        hosts = [host for host in self._managers if _is_loopback(host)] if local else [host]
        loop = asyncio.get_running_loop()
        for place in (hosts, [] if local else self._managers):
            found: list[tuple[str, int]] = []
            for each in place:
                with contextlib.suppress(OSError):
                    entries = await loop.getaddrinfo(each, port, type=socket.SOCK_STREAM)
                    found += [(str(address[0]), int(address[1])) for *_, address in entries]
            if found:
                return tuple(dict.fromkeys(found))
        return ()


async def _connected(tunnel: _Tunnel) -> TunnelConnection | None:
    """Returns a connection through a tunnel; None when no address has one."""
    for address in tunnel.addresses:
        with contextlib.suppress(OSError):
            return await TunnelConnection.connect(address, tunnel.name, tunnel.context)
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
