"""What of the submitting machine goes along with a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.command.slurm_scripts.submitting_machine import exported, is_mounted, shared
from retinue.manager.v1 import fleet_service_pb2

if TYPE_CHECKING:
    from pathlib import Path


def test_variables_of_the_machine_and_secrets_of_the_platform_stay() -> None:
    shell = {
        "PATH": "/opt/bin",
        "HOME": "/root",
        "USER": "root",
        "LANG": "C",
        "CONDA_PREFIX": "/opt",
        "PWD": "/",
        "RETINUE_TOKEN": "secret",
        "BACKENDAI_X": "1",
        "SLURM_JOB_ID": "3",
        "SSH_AUTH_SOCK": "/s",
        "TERM": "xterm",
    }
    assert exported(shell, image=False) == {"PATH": "/opt/bin", "LANG": "C", "CONDA_PREFIX": "/opt"}
    assert exported(shell, image=True) == {"LANG": "C", "CONDA_PREFIX": "/opt"}


def test_directories_that_the_nodes_grant_and_this_machine_has(tmp_path: Path) -> None:
    for name in ("data", "home/ada", "team"):
        (tmp_path / name).mkdir(parents=True)
    roots = [
        fleet_service_pb2.MountRoot(path=f"{tmp_path}/data"),
        fleet_service_pb2.MountRoot(path=f"{tmp_path}/home/{{user}}", writable=True),
        fleet_service_pb2.MountRoot(path=f"{tmp_path}/elsewhere"),
        fleet_service_pb2.MountRoot(path=f"{tmp_path}/{{project}}"),
        fleet_service_pb2.MountRoot(path=f"{tmp_path}", projects=["others"]),
    ]
    data, home, team = (f"{tmp_path}/{name}" for name in ("data", "home/ada", "team"))
    assert shared(roots, user="ada", project="", asked=[]) == [(data, data, False), (home, home, True)]
    assert shared(roots, user="ada", project="team", asked=[f"{data}/x"]) == [(home, home, True), (team, team, False)]


def test_a_directory_is_there_only_at_its_own_path() -> None:
    mounts = [("/data", "/data", True), ("/home/ada", "/files", True)]
    assert [is_mounted(path, mounts) for path in ("/data", "/data/x", "/database", "/files", "/home/ada")] == [
        *(True, True, False, False, False)
    ]
