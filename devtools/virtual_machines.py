"""Kernels of a local cluster as virtual machines: the Linux that they boot, and whether they are such by default."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retinue.client.errors import RetinueError
from retinue.devtools.threads import in_thread
from retinue.rpc.interpreter import module_command
from retinue.types.v1 import isolation_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.client.client import Client

GUESTS = Path("/var/cache/retinue/vm")
"""The directory of what virtual machines boot, as `retinue-agent build linux` fetches it."""
_VM: Final = "vm"
# Name of the file that says that the default isolation was set by a cluster, and is no choice of its user's.
_MARKER = "vm-default"


class NoVirtualMachinesError(RetinueError):
    """There can be no virtual machines here."""


async def fetch_guest(say: Callable[[str], None]) -> None:
    """Fetches the Linux of virtual machines unless it is there. Raises NoVirtualMachinesError."""
    if await in_thread(lambda: any(GUESTS.glob("linux-*"))):
        return
    say("fetching the Linux of virtual machines")
    fetching = await asyncio.create_subprocess_exec(
        *(*module_command("retinue.agent.main"), "build", "linux"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await fetching.communicate()
    finally:
        if fetching.returncode is None:
            fetching.kill()
            await fetching.wait()
    if fetching.returncode != 0:
        raise NoVirtualMachinesError(f"there can be no virtual machines: {said.decode(errors='replace').strip()}")


async def set_default(directory: Path, connect: Callable[[], Client], *, wanted: bool) -> None:
    """Makes virtual machines the default of the cluster in a directory, or undoes that where a former cluster there did
    it. Raises NoVirtualMachinesError.
    """
    marker = directory / _MARKER
    if wanted:
        await in_thread(marker.touch)
        async with connect() as client:
            async for agent in client.agents.list():
                for status in agent.runtimes:
                    if status.name == _VM and not status.available:
                        why = f"there can be no virtual machines: {status.message} (see retinue doctor)"
                        raise NoVirtualMachinesError(why)
            await client.resource_groups.update("default", default_isolation=_VM)
    elif await in_thread(marker.exists):
        async with connect() as client:
            group = await client.resource_groups.get("default")
            # It may have been set to something else since.
            if group.default_isolation == isolation_pb2.ISOLATION_VM:
                await client.resource_groups.update("default", default_isolation="")
        await in_thread(marker.unlink)
