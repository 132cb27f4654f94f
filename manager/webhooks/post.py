"""One HTTP request to an address that was looked at: what a name stands for is resolved once, and that is dialled. No redirect is followed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from retinue.manager.webhooks.core.rules import AddressPolicy

_SECONDS = 10.0
_LONGEST_LINE = 8192


class PostError(Exception):
    """The request was not taken; the text says why."""


async def post(url: str, headers: Mapping[str, str], body: str, policy: AddressPolicy) -> int:
    """Sends a request and returns the status of the answer; nothing else of the answer is read. Raises PostError."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await _post(url, headers, body.encode(), policy)
    except TimeoutError:
        raise PostError(f"no answer within {_SECONDS:.0f} s") from None
    except (OSError, ValueError) as error:
        raise PostError(str(error) or type(error).__name__) from error


async def _post(url: str, headers: Mapping[str, str], body: bytes, policy: AddressPolicy) -> int:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in found if policy.permits(str(info[4][0]))]
    if not addresses:
        raise PostError("its address is not one that requests may go to")
    reader, writer = await asyncio.open_connection(
        addresses[0],
        port,
        ssl=ssl.create_default_context() if secure else None,
        server_hostname=host if secure else None,
        limit=_LONGEST_LINE,
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {path} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        status = (await reader.readline()).split(b" ", 2)
        if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or not status[1].isdigit():  # noqa: PLR2004
            raise PostError("the answer is no HTTP")
        return int(status[1])
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await writer.wait_closed()
