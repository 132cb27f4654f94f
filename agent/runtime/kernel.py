"""Access to one kernel through a runtime: handles, and no process, path or directory of the node.

A runtime on this node's own Linux answers with `agent/inside/host_kernel.py`. One of virtual machines answers by a
channel into the guest, one of pods by an API server; the user of a handle sees no difference. No handle has to be
closed unless it says so, and what an ended kernel is asked for raises NotRunningError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from retinue.agent.fencing.watchdog import FenceTarget
    from retinue.agent.inside.exec_session import ExecStream
    from retinue.agent.inside.service_log import ServiceSample
    from retinue.agent.inside.upload import UploadHeader
    from retinue.agent.inside.workdir import Entry
    from retinue.agent.network.namespaces import NetworkNamespace
    from retinue.agent.resources.core.usage import Usage


class Upload(Protocol):
    """One incoming file of a work directory. Close it in any case."""

    @property
    def offset(self) -> int:
        """Returns how many bytes are there."""
        ...

    @property
    def complete(self) -> bool:
        """Returns whether all of it is there."""
        ...

    @property
    def resumed(self) -> bytes:
        """Returns the SHA-256 of the bytes that were there at the beginning; good before more is written."""
        ...

    async def write(self, data: bytes | memoryview) -> None:
        """Takes in more. Raises DigestError on more than was announced, NoSpaceError, OSError."""
        ...

    async def store(self) -> None:
        """Puts the file where it belongs, lastingly. Raises DigestError, RefusedError, NoSpaceError, OSError."""
        ...

    async def close(self) -> None:
        """Keeps what a later upload can continue for a while, and removes anything else."""
        ...


class OpenFile(Protocol):
    """A regular file of a work directory that is open for reading. Close it in any case."""

    @property
    def entry(self) -> Entry:
        """Returns its entry as it was when the file was opened."""
        ...

    async def read(self, size: int, offset: int) -> bytes:
        """Returns at most `size` bytes from `offset` on; none at the end. Raises OSError."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


class WorkDirectory(Protocol):
    """A kernel's work directory. Paths are relative to it, and lead through no link and not out of it.

    What is stored belongs to the attempt's user. Methods raise MissingError, RefusedError, PathError, OSError.
    """

    async def remove_stale_uploads(self) -> None:
        """Removes what was uploaded in part and not continued for long."""
        ...

    async def begin_upload(self, announced: UploadHeader, *, resume: bool) -> Upload:
        """Begins an upload, or with `resume` continues after what is there. Raises NoSpaceError, BusyError too."""
        ...

    async def make_directory(self, path: str, mode: int) -> None:
        """Makes a directory with those above it; one that is there gets the permissions."""
        ...

    async def make_link(self, path: str, target: str) -> None:
        """Makes a symbolic link with the directories above it, in place of a file or link that is there."""
        ...

    async def open(self, path: str) -> OpenFile:
        """Opens a regular file for reading."""
        ...

    def entries(self, path: str, *, recursive: bool) -> AsyncGenerator[list[Entry], None]:
        """Yields the entries of a directory, with `recursive` of those beneath it too, some at a time and in no order.

        Of anything else the only entry is its own.
        """
        ...


class Program(Protocol):
    """A process inside a kernel, equal to itself when it is found again."""

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens when it has ended."""
        ...

    def __hash__(self) -> int:
        """Returns the same number for the same process."""
        ...


class KernelSocket(Protocol):
    """A Unix socket inside a kernel that was looked up. Close it in any case."""

    async def connect(self) -> socket.socket:
        """Returns a new connection to it, not blocking. Raises OSError."""
        ...

    def close(self) -> None:
        """Gives the socket up; connections stay."""
        ...


class Kernel(Protocol):
    """One attempt's kernel, seen from outside of it."""

    def network_attachment(self) -> NetworkNamespace:
        """Returns where links of networks go, from the time the attempt is prepared. Raises NotRunningError."""
        ...

    def loopback_namespace(self) -> NetworkNamespace | None:
        """Returns the namespace whose loopback interface is that of the kernel's programs;
        None when no namespace of the node has it.

        Raises NotRunningError.
        """
        ...

    def fence_target(self) -> FenceTarget | None:
        """Returns what a watchdog ends when the agent cannot; None when nothing runs,
        or nothing can outlive the agent.
        """
        ...

    async def wait_ended(self) -> None:
        """Returns once the kernel does not run any more."""
        ...

    async def connect(self, port: int, addresses: Sequence[str], source: str = "") -> socket.socket:
        """Connects to a port inside the kernel, at the first address where something listens,
        from `source` to a loopback address of IPv4.

        The socket does not block, and its ends can be closed one by one. It may outlive the kernel: its holder closes
        it after `wait_ended`. Raises PortClosedError, NotRunningError, OSError, TimeoutError.
        """
        ...

    async def exec(self) -> ExecStream:
        """Opens a channel for one command beside the attempt's own, as the same user with the same rights and limits.

        Raises NotRunningError, KernelRuntimeError.
        """
        ...

    def files(self) -> WorkDirectory:
        """Returns the work directory of a running kernel. Raises NotRunningError, KernelRuntimeError."""
        ...

    def usage(self) -> Usage | None:
        """Returns what the kernel has used so far, as the node knows it; None when it does not run.
        Blocks, but waits for nothing inside.
        """
        ...

    async def look_at_app(self, name: str) -> ServiceSample:
        """Returns whether a program that was started apart runs, and its last output. Raises NotRunningError."""
        ...

    async def app_programs(self, name: str) -> frozenset[Program]:
        """Returns such a program and what it has started, as far as they run. Raises NotRunningError."""
        ...

    async def provide_programs(self, directory: Path) -> None:
        """Shows the agent's programs for ssh, a directory of the node, inside the kernel.
        Raises NotRunningError, KernelRuntimeError.
        """
        ...

    async def provide_python(self, runtime: Path) -> None:
        """Shows the agent's Python, a directory of the node, inside the kernel.
        Raises NotRunningError, KernelRuntimeError.
        """
        ...

    async def open_sockets(self, directory: str, names: tuple[str, ...]) -> Sequence[KernelSocket]:
        """Looks up Unix sockets in a directory of the kernel, through no link. Raises NotRunningError."""
        ...
