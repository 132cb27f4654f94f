"""The units of systemd start commands that exist, and an agent's restart leaves kernels running."""

from __future__ import annotations

import configparser
import re
import shlex

import click
import pytest

import retinue.agent.main
import retinue.manager.main
import retinue.router.main
from docs.generator import ROOT

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


def test_a_manager_has_no_capability() -> None:
    assert unit("retinue-manager")["Service"]["CapabilityBoundingSet"] == ""
