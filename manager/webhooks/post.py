"""Sends one HTTP request, to permitted addresses only. No redirect and no proxy is followed,
and no body of a response is read.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from aiohttp import AddrInfoType, ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from retinue.rpc.lookups import look_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.rpc.core.addresses import AddressPolicy

_SECONDS = 10.0


class PostError(Exception):
    """The request was not taken; the text says why."""


async def post(url: str, headers: Mapping[str, str], body: str, policy: AddressPolicy) -> int:
    """Sends a request and returns the status of the response. Raises PostError, also after 10 s.

    The address that `policy` permits is the one that is dialled: names are looked up once for each request.
    """

    def permitted(found: AddrInfoType) -> socket.socket:
        # Called for every address that is dialled, whether it stood in the URL or its name was looked up.
        family, kind, protocol, _, address = found
        if not policy.permits(str(address[0])):
            raise PermissionError(errno.EACCES, "its address is not one that requests may go to")
        return socket.socket(family, kind, protocol)

    # A connection of its own for each request: what one receiver leaves behind reaches no other.
    connector = TCPConnector(resolver=_Resolver(), use_dns_cache=False, force_close=True, socket_factory=permitted)
    try:
        async with (
            asyncio.timeout(_SECONDS),
            ClientSession(
                connector=connector,
                cookie_jar=DummyCookieJar(),
                timeout=ClientTimeout(total=None, sock_connect=None),
                auto_decompress=False,
            ) as session,
            session.post(url, data=body.encode(), headers=headers, allow_redirects=False) as response,
        ):
            return response.status
    except TimeoutError:
        raise PostError(f"no answer within {_SECONDS:.0f} s") from None
    except (ClientError, OSError, ValueError) as error:
        raise PostError(str(error) or type(error).__name__) from error


class _Resolver(AbstractResolver):
    """Looks names up so that those that hang hold up nothing else."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=found,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found, protocol, address, _ in await look_up(host, port, family)
        ]

    async def close(self) -> None:
        pass
