"""What speaks HTTP as a browser does: with cookies of its own, and with every name taken for this machine."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Loopback(AbstractResolver):
    """Every name is this machine, as browsers take all names under `localhost`;
    and with `instead`, every port that one.
    """

    def __init__(self, instead: int | None = None) -> None:
        self._instead = instead

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=self._instead or port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        return


@contextlib.asynccontextmanager
async def browser(*, trusting: bytes | None = None, at: int | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """What keeps cookies of its own, and follows redirects; for TLS, `trusting` is a certificate in PEM.

    `at` is the port to connect to, whatever addresses say.
    """
    context = True if trusting is None else ssl.create_default_context(cadata=trusting.decode())
    connector = aiohttp.TCPConnector(resolver=Loopback(at), ssl=context)
    timeout = aiohttp.ClientTimeout(total=NEVER)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as made:
        yield made
