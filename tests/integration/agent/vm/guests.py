"""Guests of virtual machines: commands in them, and the processes that they are on the node."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from retinue.agent.host.processes import PROC
from retinue.agent.inside.exec_session import Attachment, Exited
from retinue.agent.kernel.core.frames import Start

if TYPE_CHECKING:
    from retinue.agent.runtime.kernel import Kernel
    from tests.integration.agent.vm.conftest import Vms


async def code_of(kernel: Kernel, script: str) -> int:
    """Returns the exit code of a command in the guest."""
    session = Attachment(await kernel.exec())
    try:
        await session.start(Start(("sh", "-c", script)))
        async for event in session.events():
            if isinstance(event, Exited):
                return event.code
    finally:
        await session.close()
    raise AssertionError("it did not exit")


def machines(vms: Vms, attempt_id: str) -> list[int]:
    """The processes of QEMU itself."""
    found = []
    for pid in vms.cgroups().processes(attempt_id):
        with contextlib.suppress(OSError):
            if (PROC / f"{pid}/comm").read_text().startswith("qemu"):
                found.append(pid)
    return found
