"""Signals that a command handles itself, in nested blocks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a user, a script and a closed terminal end a program."""

_handlers: ContextVar[Mapping[signal.Signals, Callable[[], object]]] = ContextVar("_handlers")


@contextlib.contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Calls a handler in the event loop at each of its signals. After the block those of the block around it count
    again; they count inside it for all other signals. SIGHUP stays ignored if `nohup` ignores it.
    """
    loop = asyncio.get_running_loop()
    outer = _handlers.get({})
    own = {number: call for number, call in handlers.items() if number in outer or not _ignored(number)}
    token = _handlers.set({**outer, **own})
    for number, call in own.items():
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        _handlers.reset(token)
        for number in own:
            if number in outer:
                loop.add_signal_handler(number, outer[number])
            else:
                loop.remove_signal_handler(number)


def _ignored(number: signal.Signals) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
