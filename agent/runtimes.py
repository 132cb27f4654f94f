"""Several runtimes on one node: the isolation of an attempt says which of them runs it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING

from retinue.agent.attempts import Isolation, Phase
from retinue.agent.process.jail import has_server
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from retinue.agent.attempts import AttemptSpec, ObservedAttempt
    from retinue.agent.inside.log_file import Output
    from retinue.agent.runtime.contract import OptionalRuntime, Runtime
    from retinue.agent.runtime.kernel import Kernel

SFTP = "sftp"
"""Name of what a node can do that has OpenSSH's server, among the names of its runtimes."""
_KERNELS = {
    Isolation.PROCESS: "native processes",
    Isolation.CONTAINER: "containers",
    Isolation.VM: "virtual machines",
    Isolation.OTHER: "kernels of an isolation that its version does not know",
}


class Runtimes:
    """The runtimes of one agent as one; a Runtime."""

    name = "dispatch"

    def __init__(
        self,
        process: Runtime,
        others: Mapping[Isolation, OptionalRuntime] = MappingProxyType({}),
        missing: Sequence[RuntimeStatus] = (),
    ) -> None:
        """`process` runs native processes, and keeps the records of attempts that no other runtime has one of;
        `missing` are the statuses of runtimes that the node cannot have.
        """
        self._process = process
        self._others = others
        self._missing = missing

    @property
    def statuses(self) -> list[RuntimeStatus]:
        """Returns the runtimes that there are or could be, and what else the node can do."""
        return [
            RuntimeStatus(self._process.name, available=True),
            RuntimeStatus(SFTP, available=True)
            if has_server()
            else RuntimeStatus(SFTP, available=False, message="OpenSSH's server is not installed"),
            *(status for runtime in self._others.values() for status in runtime.statuses),
            *self._missing,
        ]

    @property
    def capacity(self) -> Mapping[str, int] | None:
        """Returns what something beyond the node leaves of it, by the one runtime that knows of it."""
        each = (runtime.capacity for runtime in (self._process, *self._others.values()))
        return next((amounts for amounts in each if amounts is not None), None)

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left."""
        await self._process.open(listener)
        for runtime in self._others.values():
            await runtime.open(listener)

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        async with AsyncExitStack() as stack:
            for runtime in (self._process, *self._others.values()):
                stack.push_async_callback(runtime.close)

    def observe(self) -> Mapping[str, ObservedAttempt]:
        """Returns all attempts there is a record of, by id."""
        found = dict(self._process.observe())
        for runtime in self._others.values():
            found |= runtime.observe()
        return found

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Creates the attempt and holds it at its start barrier. One of an isolation without a runtime is declined,
        unless it is known.
        """
        runtime = self._runtime(spec.isolation)
        if runtime is not None:
            await runtime.prepare(spec, hosts)
        elif spec.id not in self._process.observe():
            why = f"this node does not run {_KERNELS[spec.isolation]}"
            await self._process.decline(spec, Phase.FAILED, AttemptReason.ISOLATION_UNSUPPORTED, why)

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        """Records that the attempt ended before anything of it was created."""
        await (self._runtime(spec.isolation) or self._process).decline(spec, phase, reason, message)

    async def identify(self, spec: AttemptSpec) -> None:
        """Completes the record of an attempt that was rebuilt from its processes."""
        await self._owner(spec.id).identify(spec)

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        return self._owner(attempt_id).kernel(attempt_id)

    async def mark_attached(self, attempt_id: str) -> None:
        """Records that the attempt is attached to its network."""
        await self._owner(attempt_id).mark_attached(attempt_id)

    async def authorize(self, attempt_id: str, keys: tuple[str, ...]) -> None:
        """Has an attempt that serves SFTP let in by these keys only, and ends connections by others."""
        await self._owner(attempt_id).authorize(attempt_id, keys)

    async def start(self, attempt_id: str) -> None:
        """Releases the command; nothing to do unless it is held."""
        await self._owner(attempt_id).start(attempt_id)

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Asks the command to end; after `grace` seconds it is due to be killed."""
        await self._owner(attempt_id).stop(attempt_id, grace)

    async def kill(self, attempt_id: str) -> None:
        """Ends all processes of the attempt."""
        await self._owner(attempt_id).kill(attempt_id)

    async def remove(self, attempt_id: str) -> None:
        """Removes all traces of an ended attempt but the knowledge that it was."""
        await self._owner(attempt_id).remove(attempt_id)

    def output(self, attempt_id: str) -> Output:
        """Returns the output of the attempt. Raises UnknownAttemptError."""
        return self._owner(attempt_id).output(attempt_id)

    def _runtime(self, isolation: Isolation) -> Runtime | None:
        return self._process if isolation is Isolation.PROCESS else self._others.get(isolation)

    def _owner(self, attempt_id: str) -> Runtime:
        """Returns the runtime that has the record of the attempt; without one, any runtime reports it as unknown."""
        return next((runtime for runtime in self._others.values() if runtime.knows(attempt_id)), self._process)
