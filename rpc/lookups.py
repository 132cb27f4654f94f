"""Looks names up as the machine does. A name service that hangs keeps nothing else waiting, nor a program's end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Answer = TypeVar("_Answer")


async def ask_apart(question: Callable[[], _Answer]) -> _Answer:
    """Returns the answer to a question that may block for long. Raises what the question raises.

    Each has a thread of its own: those of a pool are waited for at the end of a program.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[_Answer] = loop.create_future()

    def settle(answer: Any, error: Exception | None) -> None:
        if answered.done():
            return
        if error is None:
            answered.set_result(answer)
        else:
            answered.set_exception(error)

    def ask() -> None:
        answer, failure = None, None
        try:
            answer = question()
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            failure = error
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, answer, failure)

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    return await answered


async def look_up(
    host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
) -> Sequence[tuple[socket.AddressFamily, int, str, int]]:
    """Returns family, protocol, address, and port of what a name means for a stream, in the order of preference.
    Raises OSError.
    """
    try:
        found = await ask_apart(functools.partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM))
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    return [(kind, protocol, str(address[0]), int(address[1])) for kind, _, protocol, _, address in found]
