"""Programs of Slurm's users whose jobs are containers, of an image that has Python and a shell."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.integration.agent.docker.cluster import DockerCluster
from tests.integration.agent.docker.engine import install
from tests.programs.job_scripts import CODES, SCRIPTS, WRITTEN
from tests.support.login import ACCOUNT, INSTALLED, login_machine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

IMAGE = "retinue-test/python:1"
# What submitit starts in jobs, at the place that it has on the login machine.
ENVIRONMENT = INSTALLED.parent
PACKAGES = ("submitit", "cloudpickle", "typing_extensions.py")
USERS = b"root:x:0:0::/root:/bin/sh\nann:x:1234:1234::/:/bin/sh\n"
PROGRAM = """
import os
import submitit

def place(number):
    print("of", number)
    environment = submitit.JobEnvironment()
    return number * number, os.getuid(), os.path.exists("/etc/debian_version"), environment.num_tasks

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=5, mem_gb=0.2)
jobs = executor.map_array(place, [2, 3])
print([job.result() for job in jobs])
assert "of 3\\n" in jobs[1].stdout()
"""


def make_image(cluster: DockerCluster) -> None:
    """Makes the image on each engine, of the Python of this machine's processes."""
    first, *others = cluster.engines.values()
    python = (ENVIRONMENT / "bin" / "python").resolve()
    library = ENVIRONMENT / "lib" / python.name
    links = []
    for name, target in (
        (ENVIRONMENT / "bin" / "python", python),
        (Path("/usr/bin/env"), "/bin/env"),
        (Path("/bin/bash"), "/usr/bin/bash"),
        (Path("/bin/python3"), python),
    ):
        link = tarfile.TarInfo(str(name).removeprefix("/"))
        link.type, link.linkname = tarfile.SYMTYPE, str(target)
        links.append(link)
    first.make_image(
        IMAGE,
        programs=[str(python), "bash", "getent"],
        changes=["USER ann", "ENV PATH=/bin:/usr/bin"],
        entries=links,
        files={"etc/passwd": USERS, "etc/group": b"root:x:0:\nann:x:1234:\n"},
        trees=[
            f"/usr/lib/{python.name}",
            str(ENVIRONMENT / "pyvenv.cfg"),
            *(str(library / "site-packages" / package) for package in PACKAGES),
        ],
    )
    for engine in others:
        engine.take_image(first, IMAGE)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster() -> AsyncIterator[DockerCluster]:
    """Two nodes with an engine each, in place of those whose kernels are processes."""
    install()
    async with DockerCluster() as cluster:
        await asyncio.to_thread(make_image, cluster)
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def login(cluster: DockerCluster, client: Client) -> AsyncIterator[Shell]:
    """A shell of a user whose jobs are containers."""
    async with login_machine(cluster, client) as shell:
        shell.environment["RETINUE_SBATCH_OPTIONS"] += f" --image {IMAGE}"
        yield shell


async def test_functions_of_submitit_are_containers(login: Shell) -> None:
    (login.directory / "program.py").write_text(PROGRAM)
    assert await login(f"{INSTALLED}/python program.py") == "[(4, 1234, False, 1), (9, 1234, False, 1)]\n"
    written = list((login.directory / "logs").glob("*_result.pkl"))
    # What a container writes to a mount is the submitting user's, whatever its image calls its own.
    assert {file.stat().st_uid for file in written} == {ACCOUNT}


@pytest.mark.parametrize(
    "name", ["array", "errors", "hybrid", "python", "rendezvous", "scratch", "serial", "tasks-on-nodes"]
)
async def test_a_script_of_a_computing_centre_in_containers(login: Shell, name: str) -> None:
    await asyncio.to_thread(shutil.copy, SCRIPTS / f"{name}.sh", login.directory)
    submitted = await login.run(f"sbatch --parsable --wait {name}.sh")
    assert submitted.code == CODES.get(name, 0), submitted
    for file, text in WRITTEN[name].items():
        assert (login.directory / file.replace("%j", submitted.out.strip())).read_text() == text, file
