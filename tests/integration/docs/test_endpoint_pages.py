"""Every command of the pages on endpoints and on routers, typed on a cluster: those of their blocks as they stand, but
for the program that is served, and those that their sentences name.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.integration.docs.page import steps
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
SERVER = "python3 -m http.server 8000"
# What the pages serve takes an image that there is only for their readers, and more than a machine of tests has.
STAND_INS = {
    "--image my/model:2 ": "",
    "--image my/model ": "",
    "--readiness /health": "--readiness /",
    "cpu=2,mem=4g": "cpu=0.1,mem=64m",
    "-- serve": f"-- {SERVER}",
    "{image: my/model, command: [serve], slots: {cpu: 2, mem: 4g}}": "{command: [python3, -m, http.server, '8000'],"
    " slots: {cpu: 0.1, mem: 64m}}",
    # It ends when its reader has seen enough: a request, of which each probe is one.
    "retinue endpoint logs shop -f": "grep -qm1 GET < <(retinue endpoint logs shop -f)",
    "curl -H": "curl --fail --silent --retry 300 --retry-all-errors --retry-delay 1 -H",
    "> /root/router-token": "> router-token",
}
_YAML = re.compile(r"^```yaml\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAID = re.compile(r"`((?:retinue |deploy |create )[^`\n]+)`")


@dataclass(slots=True)
class Reader:
    """Who types: a directory, and an environment."""

    directory: Path
    environment: dict[str, str]

    async def type(self, commands: str) -> str:
        """Runs commands of a shell, with their stand-ins; returns what they print. Fails when one of them does."""
        for said, meant in STAND_INS.items():
            commands = commands.replace(said, meant)
        process = await asyncio.create_subprocess_exec(
            *("bash", "-eu", "-o", "pipefail", "-c", commands),
            cwd=self.directory,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(NEVER):
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, f"{commands}\nended with {process.returncode}:\n{printed.decode()}"
        return printed.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(options=ClusterOptions(agents=1, prefix="rt-pages-", router=True)) as cluster:
        yield cluster


@pytest.fixture
def reader(cluster: Cluster, tmp_path: Path) -> Reader:
    settings = cluster.settings
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RETINUE_", "NO_COLOR"))}
    known = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
        "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml"),
        "COLUMNS": "200",
    }
    return Reader(tmp_path, kept | known)


# What the sentences of the page on endpoints name, in the order in which it can be typed; the rest is in its blocks.
SAID = {
    "retinue endpoint get",
    "retinue endpoint explain",
    "retinue endpoint token revoke",
    "retinue endpoint deploy shop -f shop.yaml",
    "deploy shop --image my/model:2 -e SPEED=fast",
    "retinue endpoint promote shop",
    "retinue endpoint rollback shop",
    "retinue endpoint scale shop --min 2 --max 20",
    "retinue endpoint rm",
    "retinue dev",
}


async def test_the_page_on_endpoints(reader: Reader) -> None:
    text = (PAGES / "endpoints.md").read_text()
    assert set(_SAID.findall(text)) == SAID
    create, apply, send = steps(PAGES / "endpoints.md")
    await reader.type(create.commands)
    ((name, manifest),) = _YAML.findall(text)
    for said, meant in STAND_INS.items():
        manifest = manifest.replace(said, meant)
    (reader.directory / name).write_text(manifest)
    applied = await reader.type(apply.commands)
    assert "endpoint shop updated" in applied
    # Its limit of concurrency is another one's, so it is a revision of its own: a canary that waits.
    if "deployed revision" in applied:
        await reader.type("retinue endpoint rollback shop --wait")
    await reader.type(send.commands)
    (token,) = (await reader.type("retinue endpoint token ls shop -o name")).split()
    await reader.type(f"retinue endpoint token revoke shop {token}")
    # A canary waits for its holds, or for its promotion.
    await reader.type("retinue endpoint deploy shop -f shop.yaml")
    await reader.type("retinue endpoint pause shop && retinue endpoint resume shop")
    await reader.type("until retinue endpoint get shop | grep '10%'; do sleep 1; done; retinue endpoint promote shop")
    await reader.type("retinue endpoint rollback shop --wait")
    await reader.type("retinue endpoint deploy shop --image my/model:2 -e SPEED=fast")
    await reader.type("retinue endpoint rollback shop --wait")
    await reader.type("retinue endpoint scale shop --min 2 --max 20 --wait")
    await reader.type("retinue endpoint scale shop --floor 3 --for 2h --wait")
    assert "floor" in (await reader.type("retinue endpoint explain shop")).lower()
    await reader.type("retinue endpoint rm shop --wait")


async def test_the_page_on_routers(cluster: Cluster, reader: Reader) -> None:
    text = (PAGES / "routers.md").read_text()
    said = {"retinue endpoint get", "retinue routers ls", "retinue routers revoke ID", "retinue dev"}
    assert set(_SAID.findall(text)) == said
    (block,) = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    install, path, join, *run = block.splitlines()
    assert "/opt/retinue/bin/pip install '.[router]'" in install
    assert path == "export PATH=/opt/retinue/bin:$PATH"
    # Another one than the cluster's own.
    await reader.type(join.replace("--agent r1", "--agent r2"))
    token = (reader.directory / "router-token").read_text().strip()
    assert token
    assert run[0].startswith(
        "retinue-router run --id r1 --manager manager.example:7440 --join-token /root/router-token"
    )
    await cluster.add_router("r2", join_token=token)
    await reader.type("until retinue routers ls | grep -q 'r2.*ALIVE'; do sleep 1; done; retinue routers ls")
    await reader.type("retinue routers revoke r2")
    assert "REVOKED" in await reader.type("retinue routers ls")
