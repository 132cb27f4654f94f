"""Where a kernel is right now, for streams that go into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.agent_rpc.relay import AttemptLocation
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.domain.preconditions import StateForbids
from retinue.manager.domain.session.apps import AppSpec
from retinue.manager.domain.session.attempts import attempt_id
from retinue.manager.domain.session.service_ports import Reachable, reachable
from retinue.manager.domain.session.spec import MAIN
from retinue.manager.domain.session.spec_codec import known_part
from retinue.manager.domain.session.states import KernelState
from retinue.manager.store.placement import attempts
from retinue.manager.store.sessions import sessions

if TYPE_CHECKING:
    import uuid

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.store.placement.attempts import KernelLocationRecord

MAIN_HOSTNAME = f"{MAIN}1"
_BEFORE_RUNNING = {KernelState.PENDING, KernelState.SCHEDULED, KernelState.PULLING, KernelState.CREATING}


class KernelUnknownError(InvalidRequest):
    """The session has no kernel of that name."""

    def __init__(self) -> None:
        super().__init__([("hostname", "is not the name of a kernel of this session")])


class KernelNotRunningError(StateForbids):
    """The kernel does not run: not yet, or no longer. `state` is its state,
    UNKNOWN for one that only another version of the manager knows.
    """

    def __init__(
        self, hostname: str, state: KernelState | None, reason: str = "", exit_code: int | None = None
    ) -> None:
        self.hostname = hostname
        self.state = state or "UNKNOWN"
        why = ", ".join(word for word in (reason, "" if exit_code is None else f"exit code {exit_code}") if word)
        advice = "" if state is None or state not in _BEFORE_RUNNING else "; wait until it is RUNNING"
        words = f"kernel {hostname} does not run: it is {self.state}{why and f' ({why})'}{advice}"
        super().__init__(words, f"kernel/{hostname}", {"state": self.state})


class KernelRestartedError(StateForbids):
    """The kernel runs again, in another attempt than that of a stream."""

    def __init__(self, hostname: str) -> None:
        self.hostname = hostname
        super().__init__(
            f"kernel {hostname} was restarted: what ran in it has ended, and its variables are lost; open another stream",
            f"kernel/{hostname}",
        )


async def locate(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> AttemptLocation:
    """Returns where a kernel runs. Raises KernelUnknownError, KernelNotRunningError."""
    kernel = await attempts.read_newest(tx, session_id, hostname)
    if kernel is None:
        raise KernelUnknownError
    return location_of(kernel, hostname)


async def check(tx: AsyncSession, session_id: uuid.UUID, hostname: str, location: AttemptLocation) -> None:
    """Raises how an attempt has ended: KernelNotRunningError, or KernelRestartedError."""
    if (await locate(tx, session_id, hostname)).attempt_id != location.attempt_id:
        raise KernelRestartedError(hostname)


async def working_directory(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> str:
    """Returns where the command of a kernel is asked to start; empty when it is not."""
    session = (await sessions.read(tx, [session_id]))[session_id]
    # No role ends in a digit.
    return session.known_spec.of_role(hostname.rstrip("0123456789")).working_directory


@dataclass(frozen=True, slots=True)
class MainKernel:
    """Where a session's main kernel runs, its address in the session's network (empty without one), what of it can be
    reached, and what can be started in it; or whether it serves SFTP.
    """

    location: AttemptLocation
    address: str
    reachable: Reachable
    apps: tuple[AppSpec, ...] = ()
    serves_sftp: bool = False
    working_directory: str = ""


async def running_main(tx: AsyncSession, session_id: uuid.UUID) -> MainKernel:
    """Returns the main kernel of a session that is there. Raises KernelNotRunningError."""
    main = await attempts.read_main(tx, session_id)
    spec = known_part(main.spec)
    return MainKernel(
        location_of(main.location, MAIN_HOSTNAME),
        main.address,
        reachable(spec.service_ports, spec.preopen_ports, main.service_ports),
        spec.apps,
        spec.sftp is not None,
        spec.of_role(MAIN).working_directory,
    )


def location_of(kernel: KernelLocationRecord, hostname: str = MAIN_HOSTNAME) -> AttemptLocation:
    """Returns where a kernel runs. Raises KernelNotRunningError."""
    if (
        kernel.state is not KernelState.RUNNING
        or kernel.agent_id is None
        or kernel.agent_address is None
        or kernel.epoch is None
    ):
        raise KernelNotRunningError(hostname, kernel.state, kernel.reason, kernel.exit_code)
    return AttemptLocation(kernel.agent_id, kernel.agent_address, attempt_id(kernel.kernel_id, kernel.epoch))
