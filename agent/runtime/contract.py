"""The contract of a runtime: the life of attempts, whatever runs them.
`tests/support/runtime_contract.py` holds every runtime to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from retinue.agent.attempts import AttemptSpec, ObservedAttempt, Phase
    from retinue.agent.inside.log_file import Output
    from retinue.agent.runtime.kernel import Kernel


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """The status of a runtime, by its name: `message` says how it runs, or why it is not available;
    empty when there is nothing to say.
    """

    name: str
    available: bool
    message: str = ""


class Runtime(Protocol):
    """Runs attempts of one kind.

    Every method may be repeated after a crash at any point. An attempt is started at most once, ever: `prepare` leaves
    a lasting record before it starts anything, and a second `prepare` of the same id does nothing.
    """

    @property
    def name(self) -> str:
        """Returns the name of the kind, as a manager knows it."""
        ...

    @property
    def capacity(self) -> Mapping[str, int] | None:
        """Returns the amounts by slot, in smallest units and none below 0, that something beyond the node leaves of it;
        None where nothing has said so: what the node has counts then. What the agent's own attempts take is not
        deducted. The listener is called when they change.
        """
        ...

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left; `listener` is called on the loop at each change."""
        ...

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        ...

    def observe(self) -> Mapping[str, ObservedAttempt]:
        """Returns all attempts there is a record of, by id."""
        ...

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Creates the attempt and holds it at its start barrier; `hosts` is the text of its /etc/hosts.

        What cannot be created is recorded as FAILED. Raises KernelRuntimeError when not even that could be recorded.
        """
        ...

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        """Records that the attempt ended before anything of it was created."""
        ...

    async def identify(self, spec: AttemptSpec) -> None:
        """Completes the record of an attempt that was rebuilt from its processes."""
        ...

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        ...

    async def mark_attached(self, attempt_id: str) -> None:
        """Records that the attempt is attached to its network."""
        ...

    async def authorize(self, attempt_id: str, keys: tuple[str, ...]) -> None:
        """Has an attempt that serves SFTP let in by these keys only, and ends connections by others.
        Raises KernelRuntimeError, OSError.
        """
        ...

    async def start(self, attempt_id: str) -> None:
        """Releases the command; nothing to do unless it is held."""
        ...

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Asks the command to end; after `grace` seconds it is due to be killed. One that is held is due at once."""
        ...

    async def kill(self, attempt_id: str) -> None:
        """Ends all processes of the attempt."""
        ...

    async def remove(self, attempt_id: str) -> None:
        """Removes all traces of an ended attempt but the knowledge that it was."""
        ...

    def output(self, attempt_id: str) -> Output:
        """Returns the output of the attempt. Raises UnknownAttemptError."""
        ...


class OptionalRuntime(Runtime, Protocol):
    """A runtime that needs more than every node has."""

    @property
    def statuses(self) -> Sequence[RuntimeStatus]:
        """Returns whether attempts can be created now, that without particular needs first."""
        ...

    def knows(self, attempt_id: str) -> bool:
        """Returns whether there is a record of the attempt."""
        ...
