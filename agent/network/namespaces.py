"""Named network namespaces of the agent; what fails is a NetworkError that says what could not be done.

Everything that has to happen inside a namespace is done by a thread that exits after.
Everything here blocks for a short time.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from retinue.agent.host.processes import alive
from retinue.agent.network.errors import NetworkError
from retinue.rpc import failpoints, network_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from retinue.agent.host.processes import Process

DIRECTORY = network_namespaces.DIRECTORY

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@failpoints.blocking("namespace", NetworkError)
def create(name: str, settings: dict[str, str]) -> None:
    """Makes the namespace unless it is there; `settings` are written to files under /proc/sys/net in it first.

    A setting this Linux does not have, or does not let us write, is left out. Raises NetworkError.
    """
    with _explained(f"make network namespace {name}"):
        network_namespaces.create(name, lambda: write_settings(settings))


@failpoints.blocking("namespace", NetworkError)
def delete(name: str) -> None:
    """Removes the name, if it exists; the namespace ends when nothing uses it any more. Raises NetworkError."""
    with _explained(f"remove network namespace {name}"):
        network_namespaces.delete(name)


@failpoints.blocking("namespace", NetworkError)
def names() -> set[str]:
    """Returns all names, those of half-made namespaces included. Raises NetworkError."""
    with _explained("list network namespaces"):
        return set(network_namespaces.names())


class NetworkNamespace(Protocol):
    """A network namespace, wherever it is found."""

    def opened(self) -> AbstractContextManager[int]:
        """Yields a descriptor of the namespace. Raises NetworkError when it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class NamespaceOf:
    """The network namespace of a process of the node."""

    process: Process

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yields a descriptor of the namespace. Raises NetworkError when the process has ended."""
        with opened(f"/proc/{self.process.pid}/ns/net") as descriptor:
            # Before the file was opened, the number may have passed to another process.
            if not alive(self.process):
                raise NetworkError(f"process {self.process.pid} has ended")
            yield descriptor


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """Yields a descriptor of the network namespace at `path`, closed at the end.
    Raises NetworkError unless it is one.
    """
    with _explained(f"open network namespace {os.fspath(path)}"):
        descriptor = network_namespaces.open_namespace(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_name(name: str) -> Iterator[int | None]:
    """Yields a descriptor of the named namespace, closed at the end; None when there is none, or only a half-made one.

    Raises NetworkError.
    """
    with _explained(f"open network namespace {name}"):
        there = network_namespaces.is_namespace(DIRECTORY / name)
    if not there:
        yield None
        return
    with opened(DIRECTORY / name) as descriptor:
        yield descriptor


def same(one: int, other: int | str) -> bool:
    """Returns whether two descriptors, or a descriptor and a path, are of one namespace. Raises NetworkError."""
    with _explained("compare network namespaces"):
        return os.path.samestat(os.fstat(one), os.stat(other))


@failpoints.blocking("namespace", NetworkError, sites=True)
def run_inside(descriptor: int, function: Callable[[], _Result]) -> _Result:
    """Calls `function` in a thread inside the namespace; returns or raises what it does.

    Raises NetworkError when the namespace cannot be entered.
    """

    def run() -> _Result:
        with _explained("enter a network namespace"):
            network_namespaces.enter(descriptor)
        return function()

    return network_namespaces.in_thread(run)


def write_settings(settings: dict[str, str]) -> None:
    """Writes values to files under /proc/sys/net, in the calling thread's namespace; leaves out what it cannot."""
    for name, value in settings.items():
        try:
            Path("/proc/sys/net", name).write_text(value)
        except OSError as error:
            _log.debug("net/%s is left as it is: %s", name, error)


@contextmanager
def _explained(purpose: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NetworkError(f"cannot {purpose}: {error.strerror or error}") from error
