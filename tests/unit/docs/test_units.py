"""The units of systemd start commands that exist, and an agent's restart leaves kernels running."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess

import click
import pytest

import retinue.agent.main
import retinue.manager.main
import retinue.router.main
from docs.generator import ROOT
from tests.support.eventually import NEVER

DIRECTORY = ROOT / "deploy" / "systemd"
PROGRAMS = {
    "retinue-manager": retinue.manager.main.main,
    "retinue-agent": retinue.agent.main.main,
    "retinue-router": retinue.router.main.main,
}


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as documented
    parser.read(DIRECTORY / f"{name}.service")
    return parser


def security(name: str) -> str:
    """Returns what systemd says of a unit's exposure."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(DIRECTORY / f"{name}.service")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=NEVER).stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_unit_starts_a_command(name: str) -> None:
    path, command, *options = shlex.split(unit(name)["Service"]["ExecStart"])
    assert path == f"/opt/retinue/bin/{name}"
    group = PROGRAMS[name]
    found = group.get_command(click.Context(group), command)
    assert found is not None
    assert options == ["--config", f"/etc/retinue/{name.removeprefix('retinue-')}.toml"]
    assert any("--config" in parameter.opts for parameter in found.params)


@pytest.mark.parametrize("name", ["retinue-agent", "retinue-router"])
def test_a_restart_leaves_what_serves_running(name: str) -> None:
    assert unit(name)["Service"]["KillMode"] == "process"


def test_a_router_takes_over_and_listens_at_443() -> None:
    service = unit("retinue-router")["Service"]
    page = (ROOT / "docs/how-to/routers.md").read_text()
    capabilities = service["AmbientCapabilities"].split()
    assert capabilities == service["CapabilityBoundingSet"].split()
    assert set(capabilities) == set(re.findall(r"`(CAP_\w+)`", page))


@pytest.mark.parametrize(("name", "most"), [("retinue-manager", 2.0), ("retinue-router", 2.5)])
def test_a_unit_does_without_what_it_does_not_need(name: str, most: float) -> None:
    said = security(name)
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= most


def test_an_agent_cannot_change_the_machine_itself() -> None:
    given = (DIRECTORY / "retinue-agent.service").read_text()
    taken = {
        name for line in re.findall(r"^CapabilityBoundingSet=~(.+)$", given, re.MULTILINE) for name in line.split()
    }
    assert {"CAP_SYS_MODULE", "CAP_SYS_BOOT", "CAP_SYS_TIME", "CAP_SYS_RAWIO"} <= taken
    # Those that the agent has where it is a container: they are known to be enough, and are all needed.
    compose = (ROOT / "compose.yaml").read_text()
    needed = re.search(r"cap_add: \[(.+)\]", compose)
    assert needed is not None
    assert not taken & {f"CAP_{name}" for name in needed[1].split(", ")}


def test_a_router_may_take_sockets_over() -> None:
    assert "pidfd_getfd" in (DIRECTORY / "retinue-router.service").read_text()


def test_a_manager_has_no_capability() -> None:
    assert unit("retinue-manager")["Service"]["CapabilityBoundingSet"] == ""
