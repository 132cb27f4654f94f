"""The page about grpcurl, by grpcurl itself."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.clients.built import PROGRAMS, ROOT, environment_of, needs
from tests.integration.docs.page import steps
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(autouse=True)
def grpcurl() -> None:
    """It is built by the tools of the client in Go."""
    needs("go")


def bash(cluster: Cluster, directory: Path, commands: str) -> str:
    """Runs commands that have to succeed; returns what they print."""
    environment = environment_of(cluster)
    environment["PATH"] = f"{PROGRAMS}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", commands],  # noqa: S607
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=NEVER,
    )
    assert done.returncode == 0, f"{commands} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


async def test_the_commands_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    functions, *others = steps(ROOT / "docs" / "how-to" / "grpcurl.md")
    for step in others:
        printed = bash(cluster, tmp_path, functions.commands + step.commands)
        missing = step.missing(printed)
        assert missing is None, f"{step.place} did not print {missing!r}:\n{printed}"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection(cluster: Cluster, tmp_path: Path, version: str) -> None:
    """grpcurl takes v1 where a server has it; what v1alpha answers is asked by hand."""
    functions = steps(ROOT / "docs" / "how-to" / "grpcurl.md")[0].commands
    call = """show -d '{"list_services": ""}' """
    text = functions.replace('"$RETINUE_ENDPOINT" "$@"', '"$@"') + (
        f"""{call} "$RETINUE_ENDPOINT" grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"""
    )
    assert '"name": "retinue.manager.v1.SessionService"' in bash(cluster, tmp_path, text)


async def test_a_request_id_is_in_the_trailers(cluster: Cluster, tmp_path: Path) -> None:
    functions = steps(ROOT / "docs" / "how-to" / "grpcurl.md")[0].commands
    functions = functions.replace("grpcurl -cacert", "grpcurl -v -H 'x-request-id: asked-by-me' -cacert")
    good = bash(cluster, tmp_path, functions + "call AccountService/GetCaller")
    bad = bash(cluster, tmp_path, functions + """! call SessionService/GetSession '{"session": "no-such"}'""")
    for printed in (good, bad):
        assert "x-request-id: asked-by-me" in printed.partition("Response trailers received:")[2]
    log = (cluster.directory / "logs" / "manager.log").read_text()
    assert any("GetSession NOT_FOUND" in line and "request asked-by-me" in line for line in log.splitlines())
