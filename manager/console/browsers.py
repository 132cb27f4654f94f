"""What is known of the browser that a request comes from, and its body, which is read within a size and a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.manager.server.wrong_tokens import address_of

if TYPE_CHECKING:
    from aiohttp import web


class BodyRefusedError(Exception):
    """A body is not read: the status that says so, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: web.Request, longest: int, seconds: float) -> bytes:
    """Returns the body. Raises BodyRefusedError when it is longer than so many bytes, says no length,
    or does not come in time.
    """
    if request.content_length is None:
        raise BodyRefusedError(411, "say how long the body is")
    if request.content_length > longest:
        raise BodyRefusedError(413, f"send at most {longest} bytes")
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise BodyRefusedError(408, f"the body did not come within {seconds:.0f} s") from None


def browser_address(request: web.Request) -> str:
    """Returns the address that a browser connects from, as the engine says; only that connects to the console."""
    host = request.headers.get("X-Forwarded-For", "")
    return address_of(f"ipv6:[{host}]:0" if ":" in host else f"ipv4:{host}:0")
