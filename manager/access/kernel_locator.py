"""Where a kernel is right now, for streams that go into it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.agent_rpc.relay import AttemptLocation
from retinue.manager.dispatch.desired_state import attempt_id
from retinue.manager.session.core.apps import ServiceSpec, stored_service
from retinue.manager.session.core.service_ports import Reachable, reachable
from retinue.manager.session.core.spec import MAIN
from retinue.manager.session.core.states import KernelState
from retinue.manager.store import attempts
from retinue.manager.store.recordset import Row

MAIN_HOSTNAME = f"{MAIN}1"


class KernelUnknownError(Exception):
    """The session has no kernel of that name."""


class KernelNotRunningError(Exception):
    """The kernel does not run: not yet, or no longer; `state` is its own."""

    def __init__(self, hostname: str, state: str) -> None:
        super().__init__(f"kernel {hostname} does not run: it is {state}")
        self.hostname = hostname
        self.state = state


async def running_place(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> AttemptLocation:
    """Where a kernel runs. Raises KernelUnknownError, KernelNotRunningError."""
    row = await attempts.read_newest(tx, session_id, hostname)
    if row is None:
        raise KernelUnknownError(hostname)
    return place(row, hostname)


@dataclass(frozen=True, slots=True)
class MainKernel:
    """Where a session's main kernel runs, its address in the session's network (empty without one), what of it can be reached, and what
    can be started in it.
    """

    place: AttemptLocation
    address: str
    reachable: Reachable
    services: tuple[ServiceSpec, ...] = ()


async def running_main(tx: AsyncSession, session_id: uuid.UUID) -> MainKernel:
    """The main kernel of a session that is there. Raises KernelNotRunningError."""
    row = await attempts.read_main(tx, session_id)
    services = tuple(map(stored_service, row["spec"].get("services", ())))
    return MainKernel(
        place(row, MAIN_HOSTNAME), row["kernel_address"], reachable(row["spec"], row["service_ports"]), services
    )


def place(row: Row, hostname: str = MAIN_HOSTNAME) -> AttemptLocation:
    """Where the kernel of a row of `attempts.read_newest` runs. Raises KernelNotRunningError."""
    if row["state"] != KernelState.RUNNING or row["agent_id"] is None:
        raise KernelNotRunningError(hostname, row["state"])
    return AttemptLocation(row["agent_id"], row["address"], attempt_id(row["kernel_id"], row["epoch"]))
