"""The managers that an agent may turn to: any of them takes its calls, whichever leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

MAX_MANAGERS = 16
ELSEWHERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Errors of a manager, or of the connection to it, that another one may not have."""


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port`; an IPv6 address stands in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004  # the highest port
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_managers(text: str) -> tuple[str, ...]:
    """Returns the addresses of `HOST:PORT[,HOST:PORT...]`, each once and in order. Raises ValueError."""
    addresses = tuple(dict.fromkeys(address.strip() for address in text.split(",")))
    for address in addresses:
        if not split_address(address)[0]:
            raise ValueError(f"{address!r} is not host:port")
    if len(addresses) > MAX_MANAGERS:
        raise ValueError(f"{len(addresses)} managers are too many: at most {MAX_MANAGERS} may be named")
    return addresses


def agent_endpoints(stored: str, managers: Sequence[str]) -> tuple[str, ...]:
    """Returns the ports for agents of all managers, first the one that was `stored` at the enrolment:
    all have the same number.

    An empty host in `stored` means that of the manager which was dialled.
    """
    host, port = split_address(stored)
    others = [f"{manager.rpartition(':')[0]}:{port}" for manager in managers]
    return tuple(dict.fromkeys([stored, *others] if host else others))


class ManagerChoice:
    """Turns to one manager after the other until one answers, and to that one first from then on."""

    def __init__(self) -> None:
        """The first one in the list comes first."""
        self._last = ""

    async def call(self, addresses: Sequence[str], work: Callable[[str], Awaitable[T]]) -> T:
        """Returns what `work` does with an address. Raises what it raises: at the last address,
        or when no other one would do better.
        """
        ordered = sorted(addresses, key=lambda address: address != self._last)
        for address in ordered:
            try:
                answer = await work(address)
            except (grpc.aio.AioRpcError, OSError) as error:
                if address == ordered[-1] or (
                    isinstance(error, grpc.aio.AioRpcError) and error.code() not in ELSEWHERE
                ):
                    raise
                continue
            self._last = address
            return answer
        raise ValueError("no manager is named")
