"""Reaches what runs in a virtual machine: by the machine's process on the node, and by streams into the guest."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import select
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.errors import KernelRuntimeError, NotRunningError, PausedError, PortClosedError
from retinue.agent.inside import service_log
from retinue.agent.inside.exec_session import (
    Attachment,
    AttachmentLostError,
    ExecStream,
    Exited,
    Printed,
    SocketChannel,
    Started,
)
from retinue.agent.inside.host_kernel import mount_directory
from retinue.agent.kernel.core.frames import Start
from retinue.agent.kernel.paths import PROGRAMS_PREFIX
from retinue.agent.network.errors import NetworkError
from retinue.agent.vm.core.machine import SHARE, SHARED_PROGRAMS, SHARED_PYTHON
from retinue.agent.vm.network import guest_addresses

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from retinue.agent.fencing.watchdog import FenceTarget
    from retinue.agent.inside.host_kernel import HostKernel
    from retinue.agent.inside.host_work_directory import HostWorkDirectory
    from retinue.agent.inside.service_log import ServiceSample
    from retinue.agent.network.namespaces import NetworkNamespace
    from retinue.agent.resources.core.usage import Usage
    from retinue.agent.runtime.tasks import Tasks
    from retinue.agent.vm.channels import Streams

REACH = f"{PROGRAMS_PREFIX}/reach"
_NO_ANSWER = "the guest does not answer"
MAX_ANSWER = 1 << 20
"""Bytes of what a program of ours may print."""
PIECE = 64 * 1024
CLOSED_POLL = 1.0
"""Seconds between two looks whether a connection whose input has ended is closed for good."""
MAX_PROGRAMS = 4096
"""Processes of one program that are known: as many as a kernel may have, by default."""
ANSWER_TIMEOUT = 60.0
"""Seconds that a program of ours may take in the guest."""


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """A process inside a virtual machine, for as long as it runs."""

    _kernel: VmKernel = field(compare=False)
    pid: int
    start: int

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, soon; nothing happens when it has ended."""
        words = ("signal", str(int(number)), str(self.pid), str(self.start))
        self._kernel.spawn(words)


@dataclass(frozen=True, slots=True)
class GuestSocket:
    """A Unix socket inside a virtual machine that was looked up."""

    _kernel: VmKernel
    _path: str

    async def connect(self) -> socket.socket:
        """Returns a new connection to it, not blocking. Raises OSError."""
        try:
            return await self._kernel.pipe("socket", self._path)
        except (PortClosedError, KernelRuntimeError) as error:
            raise ConnectionRefusedError(str(error)) from error

    def close(self) -> None:
        """Does nothing: nothing is held."""


@dataclass(frozen=True, slots=True)
class VmKernel:
    """A kernel in a virtual machine that may or may not run. It holds nothing open.
    `_pause` returns what keeps it from running, in words.

    With `_translated`, it has both an egress link and a session's network: the guest has the session's address only.
    """

    _host: HostKernel
    _process_runs: bool
    _streams: Streams
    _tasks: Tasks
    _pause: Callable[[], str]
    _translated: bool = False

    def network_attachment(self) -> NetworkNamespace:
        """Returns where links of networks go. Raises NotRunningError."""
        return self._host.network_attachment()

    def loopback_namespace(self) -> None:
        """Returns None: the guest has it."""
        return

    def fence_target(self) -> FenceTarget | None:
        """Returns what a watchdog ends when the agent cannot; None when nothing runs."""
        return self._host.fence_target()

    async def wait_ended(self) -> None:
        """Returns once the kernel does not run any more."""
        await self._host.wait_ended()

    def files(self) -> HostWorkDirectory:
        """Returns the work directory of a running kernel. Raises NotRunningError."""
        return self._host.files()

    def usage(self) -> Usage | None:
        """Returns what the machine has used so far; None when it does not run. Blocks."""
        return self._host.usage()

    async def exec(self) -> ExecStream:
        """Takes a stream, at which the guest starts the helper that runs one command.
        Raises NotRunningError, KernelRuntimeError.
        """
        if not self._process_runs:
            raise NotRunningError("the attempt does not run")
        if why := self._pause():
            raise PausedError(why)
        number, reader, writer = await self._streams.open()

        async def ended() -> None:
            await self._streams.give_back(number)

        return ExecStream(SocketChannel(reader, writer), ended, {})

    async def connect(self, port: int, addresses: Sequence[str], source: str = "") -> socket.socket:
        """Connects to a port inside the guest, at the first address where something listens; the socket does not block.

        Raises PortClosedError, NotRunningError, KernelRuntimeError.
        """
        del source  # nothing in a guest distinguishes connections by it
        if self._translated:
            try:
                addresses = await asyncio.to_thread(guest_addresses, self.network_attachment(), addresses)
            except NetworkError as error:
                raise KernelRuntimeError(str(error)) from error
        return await self.pipe("port", str(port), *addresses)

    async def look_at_app(self, name: str) -> ServiceSample:
        """Returns whether a program that was started apart runs, and its last output. Raises NotRunningError."""
        _, said = await self._run("look", service_log.path(name))
        return service_log.ServiceSample(said[:1] == b"1", said[1 : 1 + service_log.TAIL])

    async def app_programs(self, name: str) -> frozenset[GuestProgram]:
        """Returns such a program and what it has started, as far as they run. Raises NotRunningError."""
        _, said = await self._run("writers", service_log.path(name))
        found = itertools.islice(re.finditer(rb"^(\d{1,7}) (\d{1,19})$", said, re.MULTILINE), MAX_PROGRAMS)
        return frozenset(GuestProgram(self, int(pid), int(start)) for pid, start in map(re.Match.groups, found))

    async def provide_programs(self, directory: Path) -> None:
        """Shows the agent's programs for ssh inside the guest. Raises NotRunningError, KernelRuntimeError."""
        await self._show(directory, SHARED_PROGRAMS)

    async def provide_python(self, runtime: Path) -> None:
        """Shows the agent's Python inside the guest. Raises NotRunningError, KernelRuntimeError."""
        await self._show(runtime, SHARED_PYTHON)

    async def open_sockets(self, directory: str, names: tuple[str, ...]) -> Sequence[GuestSocket]:
        """Looks up Unix sockets in a directory of the guest, through no link. Raises NotRunningError."""
        found = []
        for name in names:
            path = f"{directory.rstrip('/')}/{name}"
            if (await self._run("is-socket", path))[0] != 0:
                raise NotRunningError(f"there are no sockets in {directory}")
            found.append(GuestSocket(self, path))
        return found

    def spawn(self, words: Sequence[str]) -> None:
        """Runs our program in the guest, soon."""

        async def run() -> None:
            with contextlib.suppress(KernelRuntimeError):
                await self._run(*words)

        self._tasks.spawn(run(), "reach a program")

    async def _show(self, directory: Path, name: str) -> None:
        target = self._host.fence_target()
        if target is None:
            raise NotRunningError("the attempt does not run")
        await asyncio.to_thread(mount_directory, target.process, directory, f"{SHARE}/{name}")

    async def _run(self, *words: str) -> tuple[int, bytes]:
        """Returns exit code and output of our program in the guest. Raises NotRunningError, KernelRuntimeError."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return await self._answer(words)
        except TimeoutError as error:
            raise KernelRuntimeError(_NO_ANSWER) from error

    async def _answer(self, words: tuple[str, ...]) -> tuple[int, bytes]:
        session = Attachment(await self.exec())
        said, length = bytearray(), 0
        try:
            await session.start(Start((REACH, *words)))
            async with contextlib.aclosing(session.events()) as events:
                async for event in events:
                    if isinstance(event, Printed):
                        said += b"" if event.errors else event.data
                        length += len(event.data)
                        if length > MAX_ANSWER:
                            raise KernelRuntimeError("the guest answers at too great a length")
                    elif isinstance(event, Exited):
                        return event.code, bytes(said)
        finally:
            await session.close()
        raise NotRunningError("the kernel has ended")

    async def pipe(self, *words: str) -> socket.socket:
        """Returns a connection by our program in the guest. Raises PortClosedError, NotRunningError,
        KernelRuntimeError.
        """
        session = Attachment(await self.exec())
        events = session.events()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                first = await _first(session, events, words)
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
        except BaseException as error:
            await events.aclose()
            await session.close()
            if isinstance(error, TimeoutError):
                raise KernelRuntimeError(_NO_ANSWER) from error
            raise
        # The first byte says that it is connected.
        self._tasks.spawn(_carry(session, events, ours, first[1:]), "carry a connection")
        return theirs


async def _first(
    session: Attachment, events: AsyncGenerator[Started | Printed | Exited, None], words: tuple[str, ...]
) -> bytes:
    """Starts our program, and returns what it sends first. Raises PortClosedError, AttachmentLostError."""
    await session.start(Start((REACH, *words)))
    async for event in events:
        if isinstance(event, Exited):
            raise PortClosedError(f"nothing listens on port {words[1]}")
        if isinstance(event, Printed) and not event.errors:
            return event.data
    return b""


async def _carry(session: Attachment, events: object, ours: socket.socket, first: bytes) -> None:
    """Carries bytes between a socket and our program in the guest, until either has closed."""
    loop = asyncio.get_running_loop()

    async def out() -> None:
        if first:
            await loop.sock_sendall(ours, first)
        async for event in events:  # type: ignore[attr-defined]
            if isinstance(event, Printed) and not event.errors:
                await loop.sock_sendall(ours, event.data)
            elif isinstance(event, Exited):
                return

    async def into() -> None:
        while data := await loop.sock_recv(ours, PIECE):
            await session.write(data)
        await session.end_input()
        poller = select.poll()
        poller.register(ours, 0)
        # Only one direction may have ended.
        while not poller.poll(0):  # noqa: ASYNC110  # Linux reports it by a poll only
            await asyncio.sleep(CLOSED_POLL)

    directions = [asyncio.create_task(out()), asyncio.create_task(into())]
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            with contextlib.suppress(OSError, AttachmentLostError):
                task.result()
    finally:
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        ours.close()
        await session.close()
