"""Runs functions inside the named network namespaces of nodes."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, TypeVar

from retinue.rpc.network_namespaces import DIRECTORY, enter, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_Value = TypeVar("_Value")


def run_in(name: str, function: Callable[[], _Value]) -> _Value:
    """Runs a function in a thread inside the namespace, and waits for it. Raises FileNotFoundError when there is none."""

    def run() -> _Value:
        descriptor = os.open(DIRECTORY / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(descriptor)
        finally:
            os.close(descriptor)
        return function()

    return in_thread(run)


def netlink_socket(name: str) -> socket.socket:
    """Returns a netlink socket that belongs to the namespace, usable from any thread. The namespace lives while it is open."""

    def make() -> socket.socket:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)

    return run_in(name, make)
