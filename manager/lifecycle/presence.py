"""Where a kernel is right now, for streams that go into it."""

from __future__ import annotations

import uuid

from sqlmodel.ext.asyncio.session import AsyncSession

from manager.fleet.forwarding import Place
from manager.lifecycle.desires import attempt_id
from manager.lifecycle.states import KernelState
from manager.store import attempts


class KernelUnknownError(Exception):
    """The session has no kernel of that name."""


class KernelNotRunningError(Exception):
    """The kernel does not run: not yet, or no longer; `state` is its own."""

    def __init__(self, hostname: str, state: str) -> None:
        super().__init__(f"kernel {hostname} does not run: it is {state}")
        self.hostname = hostname
        self.state = state


async def running_place(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> Place:
    """Where a kernel runs. Raises KernelUnknownError, KernelNotRunningError."""
    row = await attempts.read_newest(tx, session_id, hostname)
    if row is None:
        raise KernelUnknownError(hostname)
    if row["state"] != KernelState.RUNNING or row["agent_id"] is None:
        raise KernelNotRunningError(hostname, row["state"])
    return Place(row["agent_id"], row["address"], attempt_id(row["kernel_id"], row["epoch"]))
