"""Kernels that do nothing, for tests and benches: no process, no container, no file.

An agent has them only when it is asked for them explicitly (`--null-kernels`), it announces no other kind then, and a
manager that is not in development mode refuses it. What they show is the cost of everything around a kernel.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.attempts import ObservedAttempt, Phase
from retinue.agent.errors import NotRunningError, UnknownAttemptError
from retinue.agent.inside.host_kernel import HostKernel
from retinue.agent.inside.log_file import Output
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.inside.exec_session import ExecStream
    from retinue.agent.runtime.kernel import Kernel

NAME = "null"
_NOWHERE = Path("/nonexistent/output")


class NullRuntime:
    """A Runtime whose kernels end with 0 as soon as they are released; one without a command idles until it is stopped.

    Its attempts are values of this process: they are gone with it, and a manager takes them for lost.
    """

    name = NAME
    statuses = (RuntimeStatus(NAME, available=True),)
    capacity = None

    def __init__(self) -> None:
        self._attempts: dict[str, ObservedAttempt] = {}
        self._idle: set[str] = set()
        self._removed: set[str] = set()
        self._listener: Callable[[], None] = lambda: None

    async def open(self, listener: Callable[[], None]) -> None:
        """Does nothing: there is nothing to take over."""
        self._listener = listener

    async def close(self) -> None:
        """Releases nothing: there is nothing to release."""

    def observe(self) -> Mapping[str, ObservedAttempt]:
        """Returns all attempts there are, by id."""
        return self._attempts

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Notes the attempt as created."""
        if spec.id not in self._attempts and spec.id not in self._removed:
            if not spec.command:
                self._idle.add(spec.id)
            self._set(ObservedAttempt(spec.id, spec.session_id, spec.kernel_id, spec.networked, Phase.CREATED))

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        """Notes that the attempt ended before anything of it was created."""
        if spec.id not in self._attempts and spec.id not in self._removed:
            ended = ObservedAttempt(spec.id, spec.session_id, spec.kernel_id, spec.networked, phase)
            self._set(replace(ended, reason=reason, message=message, end_time=time.time()))

    async def identify(self, spec: AttemptSpec) -> None:
        """Does nothing: attempts are never rebuilt."""

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns a kernel in which nothing runs. Raises UnknownAttemptError."""
        self._attempt(attempt_id)
        return HostKernel(attempt_id, None, None, functools.partial(_refuse, attempt_id))

    async def mark_attached(self, attempt_id: str) -> None:
        """Records that the attempt is attached to its network."""
        self._set(replace(self._attempt(attempt_id), attached=True))

    async def authorize(self, attempt_id: str, keys: tuple[str, ...]) -> None:
        """Does nothing."""

    async def start(self, attempt_id: str) -> None:
        """Releases the attempt; one with a command ends at once."""
        attempt = self._attempt(attempt_id)
        if attempt.phase is not Phase.CREATED:
            return
        now = time.time()
        if attempt_id in self._idle:
            self._set(replace(attempt, phase=Phase.RUNNING, start_time=now))
        else:
            ended = replace(
                attempt, phase=Phase.EXITED, exit_code=0, reason=AttemptReason.EXITED, start_time=now, end_time=now
            )
            self._set(ended)

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Ends it."""
        await self.kill(attempt_id)

    async def kill(self, attempt_id: str) -> None:
        """Ends it."""
        attempt = self._attempt(attempt_id)
        if not attempt.phase.ended:
            self._set(
                replace(attempt, phase=Phase.EXITED, exit_code=143, reason=AttemptReason.STOPPED, end_time=time.time())
            )

    async def remove(self, attempt_id: str) -> None:
        """Forgets all but that it was."""
        if self._attempts.pop(attempt_id, None) is not None:
            self._idle.discard(attempt_id)
            self._removed.add(attempt_id)
            self._listener()

    def output(self, attempt_id: str) -> Output:
        """Returns empty output. Raises UnknownAttemptError."""
        attempt = self._attempt(attempt_id)
        return Output(_NOWHERE, lambda: attempt.phase.ended)

    def _attempt(self, attempt_id: str) -> ObservedAttempt:
        if (attempt := self._attempts.get(attempt_id)) is None:
            raise UnknownAttemptError(f"there is no attempt {attempt_id}")
        return attempt

    def _set(self, attempt: ObservedAttempt) -> None:
        self._attempts[attempt.id] = attempt
        self._listener()


async def _refuse(attempt_id: str) -> ExecStream:
    raise NotRunningError(f"attempt {attempt_id} does nothing")
