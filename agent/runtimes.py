"""Several kinds of kernels on one node: an attempt with an image is a container, any other one a native process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.attempts import AttemptSpec, ObservedAttempt, Phase
    from retinue.agent.docker.backend import DockerRuntime
    from retinue.agent.inside.log_file import Output
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Kernel


class Runtimes:
    """The backends of one agent as one; a Runtime."""

    name = "dispatch"

    def __init__(self, process: Runtime, docker: DockerRuntime | None) -> None:
        """Without `docker`, attempts with an image go to `process`, which says that it has none."""
        self._process = process
        self._docker = docker

    @property
    def names(self) -> list[str]:
        """Returns the names of the kinds that attempts can be created of now."""
        usable = [self._process.name]
        if self._docker is not None and self._docker.available:
            usable.append(self._docker.name)
        return usable

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left."""
        await self._process.open(listener)
        if self._docker is not None:
            await self._docker.open(listener)

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        try:
            if self._docker is not None:
                await self._docker.close()
        finally:
            await self._process.close()

    def observe(self) -> Mapping[str, ObservedAttempt]:
        """Returns all attempts there is a record of, by id."""
        found = dict(self._process.observe())
        if self._docker is not None:
            found |= self._docker.observe()
        return found

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Creates the attempt and holds it at its start barrier."""
        await self._kind(spec).prepare(spec, hosts)

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        """Records that the attempt ended before anything of it was created."""
        await self._kind(spec).decline(spec, phase, reason, message)

    async def identify(self, spec: AttemptSpec) -> None:
        """Completes the record of an attempt that was rebuilt from its processes."""
        await self._owner(spec.id).identify(spec)

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        return self._owner(attempt_id).kernel(attempt_id)

    async def mark_attached(self, attempt_id: str) -> None:
        """Records that the attempt has its place in the network."""
        await self._owner(attempt_id).mark_attached(attempt_id)

    async def start(self, attempt_id: str) -> None:
        """Lets the command go; nothing to do unless it is held."""
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

    def _kind(self, spec: AttemptSpec) -> Runtime:
        return self._docker if spec.image and self._docker is not None else self._process

    def _owner(self, attempt_id: str) -> Runtime:
        """Returns the runtime that has the record of the attempt; without one, either runtime reports it as unknown."""
        return self._docker if self._docker is not None and self._docker.knows(attempt_id) else self._process
