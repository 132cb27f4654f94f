"""Commands that a user attaches to a container: the helper that runs them, by an exec of the engine,
and what is left of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from signal import SIGTERM
from typing import TYPE_CHECKING

import aiohttp

from retinue.agent.docker.core.container_spec import INSIDE, container_name
from retinue.agent.errors import KernelRuntimeError, NotRunningError, PausedError
from retinue.agent.host.freezer import FROZEN, is_frozen
from retinue.agent.host.lanes import KERNELS
from retinue.agent.host.processes import identify, owner_of, send_signal
from retinue.agent.inside.exec_session import ExecStream
from retinue.rpc import failpoints

if TYPE_CHECKING:
    from aiodocker.stream import Stream

    from retinue.agent.docker.engine import Engine
    from retinue.agent.host.processes import Process
    from retinue.agent.runtime.tasks import Tasks

HELPER = (f"{INSIDE}/attach", "confine", f"{INSIDE}/filter")
END_TIMEOUT, END_POLL = 10.0, 0.2
"""Seconds that what a user attached may take to end, and between two looks."""
_OUTPUT = 1


class ExecChannel:
    """The input and output of a command of the engine; a Channel. Errors of the helper itself are left out."""

    def __init__(self, stream: Stream) -> None:
        """Takes over the stream."""
        self._stream = stream
        self._rest = bytearray()

    @failpoints.awaited("attached", OSError)
    async def readexactly(self, count: int) -> bytes:
        """Returns so many bytes of output. Raises asyncio.IncompleteReadError at the end, OSError."""
        while len(self._rest) < count:
            try:
                message = await self._stream.read_out()
            except aiohttp.ClientError as error:
                raise ConnectionResetError(str(error)) from error
            if message is None:
                raise asyncio.IncompleteReadError(bytes(self._rest), count)
            if message.stream == _OUTPUT:
                self._rest += message.data
        data = bytes(self._rest[:count])
        del self._rest[:count]
        return data

    @failpoints.awaited("attached", OSError)
    async def send(self, data: bytes) -> None:
        """Passes input on, and returns when it is under way. Raises OSError."""
        try:
            await self._stream.write_in(data)
        except (AssertionError, AttributeError, RuntimeError, aiohttp.ClientError) as error:
            # aiodocker asserts that there is a transport, and there is none once the engine has closed the connection.
            raise ConnectionResetError("the engine has closed the connection") from error

    async def close(self) -> None:
        """Ends input and output."""
        await self._stream.close()


async def attach(engine: Engine, attempt_id: str, init: Process | None, tasks: Tasks) -> ExecStream:
    """Starts a helper in the container of a running attempt, as the user of its first process and in no further group:
    what the engine would find in the container's /etc/passwd by now may be the kernel's own work.

    Raises NotRunningError, EngineError.
    """
    try:
        uid, gid = await KERNELS.run(owner_of, init) if init is not None else (0, 0)
    except OSError as error:
        raise NotRunningError("the kernel has ended") from error
    execution = await engine.create_exec(container_name(attempt_id), HELPER, f"{uid}:{gid}") if uid else None
    if execution is None:
        raise await _not_running(init)
    try:
        stream = await engine.start_exec(execution)
    except (asyncio.CancelledError, KernelRuntimeError):
        # The engine may have started it before it heard of that.
        tasks.spawn(_end(engine, execution), "end of an attached command")
        raise
    if stream is None:
        raise await _not_running(init)
    return ExecStream(ExecChannel(stream), lambda: _end(engine, execution), {})


async def _not_running(init: Process | None) -> NotRunningError:
    # An engine executes nothing in a container that is paused either.
    paused = init is not None and await KERNELS.run(is_frozen, init)
    return PausedError(FROZEN) if paused else NotRunningError("the kernel has ended")


async def _end(engine: Engine, execution: str) -> None:
    """Returns when nothing is left of a helper whose connection is closed, or when that cannot be found out."""
    with contextlib.suppress(TimeoutError, KernelRuntimeError):
        async with asyncio.timeout(END_TIMEOUT):
            # The engine sends no event when what it has executed ends.
            while (pid := await engine.executing(execution)) is not None and await KERNELS.run(_ask_to_end, pid):  # noqa: ASYNC110
                await asyncio.sleep(END_POLL)


def _ask_to_end(pid: int) -> bool:
    """Signals a helper that its caller is gone, in case the engine did not; False when it does not run."""
    helper = identify(pid)
    return helper is not None and send_signal(helper, SIGTERM)
