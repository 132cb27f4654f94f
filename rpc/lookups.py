"""Looks names up as the machine does. A name service that hangs keeps nothing else waiting, nor a program's end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


async def look_up(
    host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
) -> Sequence[tuple[socket.AddressFamily, int, str, int]]:
    """Returns family, protocol, address, and port of what a name means for a stream, in the order of preference.
    Raises OSError.

    Each look-up has a thread of its own: those of a pool are waited for at the end of a program.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def settle(answer: list[Any] | OSError) -> None:
        if found.done():
            return
        if isinstance(answer, OSError):
            found.set_exception(answer)
        else:
            found.set_result(answer)

    def ask() -> None:
        answer: list[Any] | OSError
        try:
            answer = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        except OSError as error:
            answer = error
        except UnicodeError as error:
            answer = socket.gaierror(socket.EAI_NONAME, str(error))
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(functools.partial(settle, answer))

    threading.Thread(target=ask, name=f"look-up of {host}", daemon=True).start()
    return [(kind, protocol, str(address[0]), int(address[1])) for kind, _, protocol, _, address in await found]
