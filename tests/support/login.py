"""A machine from which a user of Slurm works: a directory that jobs see by the same path, and Slurm's commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.manager.v1.fleet_service_pb2 import MountOwner, MountRoot
from tests.support.eventually import NEVER
from tests.support.forked_programs import PROGRAM, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

INSTALLED = Path("/var/cache/retinue/slurm/bin")
"""Where `scripts/install slurm` puts programs, here and for kernels that see the node's files."""
ACCOUNT = 58_213
"""The number of the user of a login machine, and of its group; no account of this machine has to have it."""
# An ordinary user, but for one thing: the checkout and its Python may be where only root may read. Without the bit,
# access() would not count that.
AS_ACCOUNT = (
    *("setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups", "--securebits=+no_setuid_fixup"),
    *(
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=-all,+dac_read_search",
        "--bounding-set=-all,+dac_read_search",
    ),
)


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs command lines by bash in a directory; `before` is what becomes bash."""

    directory: Path
    environment: dict[str, str]
    before: tuple[str, ...] = ()

    async def start(self, command: str, **environment: str) -> asyncio.subprocess.Process:
        """Starts a command line; its errors go with its output."""
        return await self._process(command, environment, asyncio.subprocess.STDOUT)

    async def run(self, command: str, **environment: str) -> Outcome:
        """Runs a command line to its end."""
        process = await self._process(command, environment, asyncio.subprocess.PIPE)
        async with asyncio.timeout(NEVER):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Outcome(process.returncode, out.decode(), err.decode())

    async def __call__(self, command: str, **environment: str) -> str:
        """Runs a command line that has to end well; returns its output."""
        outcome = await self.run(command, **environment)
        assert outcome.code == 0, outcome.out + outcome.err
        return outcome.out

    async def _process(self, command: str, environment: dict[str, str], errors: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(*self.before, "bash", "-eu", "-o", "pipefail", "-c", command),
            env={**self.environment, **environment},
            cwd=self.directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )


def shell_in(directory: Path, cluster: Cluster, before: tuple[str, ...] = ()) -> Shell:
    """Returns a shell of a user of the cluster, whose home directory it is."""
    settings = cluster.settings
    own = ("RETINUE_", "SLURM_", "SBATCH_", "NO_COLOR", "XDG_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    environment = {
        **kept,
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
        "HOME": str(directory),
        "PATH": os.pathsep.join((str(PROGRAM.parent), str(INSTALLED), kept["PATH"])),
    }
    return Shell(directory, environment, before)


@contextlib.asynccontextmanager
async def login_machine(cluster: Cluster, client: Client) -> AsyncIterator[Shell]:
    """A shell of an ordinary user in a directory that sessions may mount, with Slurm's commands on its PATH. What jobs
    write there is the user's.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rt-test-", dir="/srv") as made,
        tempfile.TemporaryDirectory(prefix="rt-test-") as home,
    ):
        for directory in (made, home):
            os.chown(directory, ACCOUNT, ACCOUNT)
        shell = shell_in(Path(made), cluster, AS_ACCOUNT)
        # Programs keep secrets there, and kernels have homes of their own.
        shell.environment.update(HOME=home, USER="ann", LOGNAME="ann")
        commands = (await shell("retinue slurm-commands")).strip()
        shell.environment["PATH"] = f"{commands}{os.pathsep}{shell.environment['PATH']}"
        # Jobs that say nothing of what they need.
        shell.environment["RETINUE_SBATCH_OPTIONS"] = "--slots cpu=0.1,mem=100m"
        root = MountRoot(path=made, writable=True, owner=MountOwner(uid=ACCOUNT, gid=ACCOUNT))
        await client.resource_groups.update("default", mount_roots=[root])
        try:
            yield shell
        finally:
            await client.resource_groups.update("default", mount_roots=[])
