"""Every block of docs/how-to/distributed-training.md, typed as it stands there but for the sizes of its sessions:
PyTorch, Open MPI, Ray and Dask over two nodes, with their defaults.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.manager.v1.fleet_service_pb2 import MountRoot
from tests.integration.docs.page import Step, steps
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "distributed-training.md"
PROGRAM = re.compile(r"^`/srv/train/(\w+\.\w+)`:\n\n```(?:python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = "/var/cache/retinue/distributed/bin"
SMALL_RAY = "--disable-usage-stats --num-cpus 1 --object-store-memory 80000000"
# What a kernel of the tests has is neither in an image nor on its PATH, and less than the page's reader has.
STAND_INS = {
    "cpu=8,mem=32g": "cpu=3,mem=1500m",
    # Debian's torch 1.13 does not know its own default of `--redirects` with Python 3.11.
    "torchrun": "python3 -m torch.distributed.run --redirects 0:1,1:1 --tee 0:1,1:1",
    "ray start --head": "ray start --head --include-dashboard=false",
    "ray start": f"{PYTHON}/ray start {SMALL_RAY}",
    "dask ": f"{PYTHON}/dask ",
    "python3 /train/squares.py": f"{PYTHON}/python /train/squares.py",
    "python3 /train/blocks.py": f"{PYTHON}/python /train/blocks.py",
}
STEPS = steps(PAGE)


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The directory that is /srv/train for readers, with the programs of the page."""
    with tempfile.TemporaryDirectory(prefix="rt-test-", dir="/srv") as made:
        directory = Path(made)
        directory.chmod(0o755)
        for name, text in PROGRAM.findall(PAGE.read_text()):
            (directory / name).write_text(_stood_in(text))
        yield directory


def _stood_in(text: str) -> str:
    for said, meant in STAND_INS.items():
        text = text.replace(said, meant)
    return text


def test_every_step_of_the_page_says_what_it_prints() -> None:
    assert [len(step.expected) for step in STEPS] == [1, 1, 2, 1, 1]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("step", STEPS, ids=["torch", "torchrun", "mpi", "ray", "dask"])
async def test_a_program_over_two_nodes(cluster: Cluster, client: Client, programs: Path, step: Step) -> None:
    await client.resource_groups.update("default", mount_roots=[MountRoot(path=str(programs))])
    commands = _stood_in(step.commands).replace("/srv/train", str(programs))
    settings = cluster.settings
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-eu", "-c", commands),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(NEVER):
            output = (await process.communicate())[0].decode()
    finally:
        await client.resource_groups.update("default", mount_roots=[])
    assert process.returncode == 0, output
    assert step.missing(output) is None, output
