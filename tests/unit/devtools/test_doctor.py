"""What a machine's facts mean for a node, and that this machine can be looked at."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from retinue.devtools.doctor import (
    ERROR,
    LINKS,
    OK,
    TOOLS,
    WARNING,
    Facts,
    _mount_options,
    agent_units,
    engine_configuration,
    evaluate,
)
from retinue.devtools.doctor_command import doctor_command
from retinue.devtools.node_network import EgressPath, VxlanPort

GOOD = Facts(
    tools=dict.fromkeys(TOOLS, True),
    programs_built=True,
    ssh_built=True,
    python_built=True,
    kernel="5.12.0-1-amd64",
    engine={"version": "20.10.24+dfsg1", "runc": "1.1.5", "live_restore": True},
    cgroup_version=2,
    controllers=frozenset({"memory", "cpu", "pids", "io"}),
    links=dict.fromkeys(LINKS, True),
    mtu=1500,
    addresses=("172.17.0.0/16", "192.168.1.0/24"),
    clock_synchronized=True,
    name_servers=("127.0.0.53", "192.168.1.1"),
    qemu="7.2.22",
    guest_linux="6.1.0-56-amd64",
    kvm=True,
)


# As `systemctl show` prints them.
OUR_UNIT = "KillMode=process\nDelegate=yes\nId=retinue-agent.service\nLoadState=loaded\n"
PLAIN_UNIT = "KillMode=control-group\nDelegate=no\nId=retinue-agent-b.service\nLoadState=loaded\n"
NO_UNIT = "KillMode=control-group\nDelegate=no\nId=retinue-agent.service\nLoadState=not-found\n"


def test_a_good_node_lacks_nothing() -> None:
    assert {finding.state for finding in evaluate(GOOD)} == {OK}


def test_services_of_agents() -> None:
    assert evaluate(replace(GOOD, units=agent_units(NO_UNIT))) == evaluate(replace(GOOD, units=agent_units("")))
    assert evaluate(replace(GOOD, units=agent_units(""))) == evaluate(GOOD)
    found = evaluate(replace(GOOD, units=agent_units(f"{OUR_UNIT}\n{PLAIN_UNIT}\n{OUR_UNIT}")))
    assert [finding.state for finding in found if finding.name == "systemd"] == [OK, ERROR]
    unit = (Path(__file__).parents[3] / "deploy" / "systemd" / "retinue-agent.service").read_text()
    assert {"KillMode=process", "Delegate=yes"} <= set(unit.splitlines())


@pytest.mark.parametrize(
    ("facts", "name", "state", "remedy"),
    [
        (replace(GOOD, way=EgressPath("", "eth0", (("UDP", "dropped"),))), "egress", WARNING, "firewall"),
        (replace(GOOD, way=EgressPath("nft: there is none")), "egress", WARNING, "again"),
        (replace(GOOD, way=EgressPath("", "eth0", forwards=False)), "forwarding", WARNING, "sysctl"),
        (replace(GOOD, way=EgressPath("", "eth0", takes_answers=False)), "forwarding", WARNING, "net.ipv4.conf.eth0"),
        (replace(GOOD, mounts={"/d": frozenset({"noexec"})}), "data-dir", WARNING, "--scratch-dir"),
        (replace(GOOD, mounts={"/d": frozenset({"ro", "noexec"})}), "data-dir", ERROR, "--data-dir"),
        (replace(GOOD, vxlan=VxlanPort(4789, usable=False)), "vxlan-port", WARNING, "--vxlan-port"),
        (replace(GOOD, vxlan=VxlanPort(4789, problem="ip: no")), "vxlan-port", WARNING, "again"),
        (replace(GOOD, name_servers=("127.0.0.53", "::1")), "names", WARNING, "--name-server"),
        (replace(GOOD, root=False), "root", ERROR, "as root"),
        (
            replace(GOOD, engine={**(GOOD.engine or {}), **engine_configuration({"SecurityOptions": ["name=userns"]})}),
            "engine-users",
            WARNING,
            "--docker-host",
        ),
        (replace(GOOD, units=agent_units(PLAIN_UNIT)), "systemd", ERROR, "KillMode=process and Delegate=yes"),
        (replace(GOOD, units=agent_units(OUR_UNIT.replace("=yes", "=no"))), "systemd", ERROR, "put Delegate=yes below"),
        (replace(GOOD, units=agent_units(OUR_UNIT.replace("=process", "=mixed"))), "systemd", ERROR, "put KillMode="),
        (replace(GOOD, tools={**GOOD.tools, "bwrap": False}), "bwrap", ERROR, "bubblewrap"),
        (replace(GOOD, engine=None), "docker", WARNING, "docker.io"),
        (replace(GOOD, engine=None, docker_host="tcp://127.0.0.1:2375"), "docker", ERROR, "unix:///PATH"),
        (replace(GOOD, qemu="", guest_linux="", kvm=False), "qemu", WARNING, "qemu-system-x86"),
        (replace(GOOD, guest_linux=""), "vm-linux", WARNING, "retinue-agent build linux"),
        (replace(GOOD, kvm=False), "kvm", WARNING, "firmware"),
        (replace(GOOD, engine={**(GOOD.engine or {}), "version": "19.03.1"}), "docker", ERROR, "20.10"),
        (replace(GOOD, engine={**(GOOD.engine or {}), "runc": "1.0.3"}), "runc", ERROR, "1.1"),
        (replace(GOOD, engine={**(GOOD.engine or {}), "runc": ""}), "runc", WARNING, "1.1"),
        (replace(GOOD, engine={**(GOOD.engine or {}), "live_restore": False}), "live-restore", WARNING, "daemon.json"),
        (replace(GOOD, programs_built=False, compiler=False), "compiler", ERROR, "gcc"),
        (replace(GOOD, ssh_built=False), "ssh", WARNING, "retinue-agent build ssh"),
        (replace(GOOD, python_built=False), "python", WARNING, "retinue-agent build python"),
        (replace(GOOD, kernel="5.10.0-30-amd64"), "linux", ERROR, "5.12"),
        (replace(GOOD, kernel=""), "linux", ERROR, "5.12"),
        (replace(GOOD, controllers=frozenset({"cpu", "pids"})), "cgroups", ERROR, "cgroup_enable=memory"),
        (replace(GOOD, links={**GOOD.links, "vxlan": False}), "vxlan", ERROR, "modprobe vxlan"),
        (replace(GOOD, overlay=False), "overlay", ERROR, "modprobe overlay"),
        (replace(GOOD, nftables=False), "nf_tables", ERROR, "modprobe nf_tables"),
        (replace(GOOD, mtu=1200), "mtu", ERROR, "1300"),
        (replace(GOOD, mtu=None), "mtu", ERROR, "--underlay-address"),
        (replace(GOOD, addresses=("10.200.0.0/16",)), "addresses", WARNING, "--session-subnets"),
        (replace(GOOD, clock_synchronized=False), "clock", WARNING, "chrony"),
        (replace(GOOD, clock_synchronized=None), "clock", WARNING, "chrony"),
    ],
)
def test_each_lack_is_named_with_its_remedy(facts: Facts, name: str, state: str, remedy: str) -> None:
    (finding,) = [finding for finding in evaluate(facts) if finding.state != OK]
    assert (finding.name, finding.state) == (name, state)
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("info", "name", "remedy"),
    [
        ({"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}, "engine-users", "as root"),
        ({"MemoryLimit": False}, "engine-limits", "cgroup"),
        ({"PidsLimit": False, "CpuCfsQuota": False, "MemoryLimit": True}, "engine-limits", "cgroup"),
        ({"DefaultRuntime": "runsc"}, "engine-runtime", "default-runtime"),
        ({"DefaultRuntime": "safe", "Runtimes": {"safe": {"path": "/opt/kata-runtime"}}}, "engine-runtime", "runc"),
        (
            {"DefaultRuntime": "vm", "Runtimes": {"vm": {"runtimeType": "io.containerd.kata.v2"}}},
            "engine-runtime",
            "runc",
        ),
    ],
)
def test_an_engine_that_kernels_cannot_run_on(info: dict[str, Any], name: str, remedy: str) -> None:
    facts = replace(GOOD, engine={**(GOOD.engine or {}), **engine_configuration(info)})
    (finding,) = [finding for finding in evaluate(facts) if finding.state != OK]
    assert (finding.name, finding.state) == (name, ERROR)
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"SecurityOptions": None, "Runtimes": None},
        {"SecurityOptions": ["name=seccomp,profile=/etc/own.json", "name=cgroupns", "name=no-new-privileges"]},
        {"MemoryLimit": True, "CpuCfsQuota": True, "PidsLimit": True, "SwapLimit": False},
        {"DefaultRuntime": "nvidia", "Runtimes": {"nvidia": {"path": "nvidia-container-runtime"}, "kata": {}}},
        {"LoggingDriver": "none", "CgroupDriver": "systemd", "HttpProxy": "http://proxy:3128"},
    ],
)
def test_an_engine_that_kernels_run_on(info: dict[str, Any]) -> None:
    facts = replace(GOOD, engine={**(GOOD.engine or {}), **engine_configuration(info)})
    assert {finding.state for finding in evaluate(facts)} == {OK}


def test_addresses_are_compared_with_the_subnets_that_managers_have() -> None:
    facts = replace(GOOD, addresses=("172.20.4.0/24",))
    assert {finding.state for finding in evaluate(facts)} == {OK}
    (finding,) = [one for one in evaluate(facts, ipaddress.IPv4Network("172.20.0.0/16")) if one.state != OK]
    assert "172.20.4.0/24 overlaps 172.20.0.0/16" in finding.message


@pytest.mark.root
def test_this_machine() -> None:
    """It runs the tests, so it has what a node needs; whether an engine runs beside them is open."""
    result = CliRunner().invoke(doctor_command, ["-o", "json"], standalone_mode=False)
    findings = {finding["name"]: finding for finding in json.loads(result.output)}
    assert {*TOOLS, *LINKS, "cgroups", "mtu", "linux", "ssh", "docker", "clock", "addresses"} <= set(findings)
    assert {findings[name]["state"] for name in (*TOOLS, *LINKS, "cgroups")} == {OK}
    assert result.return_value == (1 if ERROR in {finding["state"] for finding in findings.values()} else 0)
    assert "REMEDY" in CliRunner().invoke(doctor_command, [], standalone_mode=False).output


def test_the_mount_of_a_directory_that_is_not_there_is_that_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {tmp_path: os.ST_NOEXEC | os.ST_RDONLY, tmp_path.parent: 0}
    monkeypatch.setattr(os, "statvfs", lambda directory: SimpleNamespace(f_flag=flags[directory]))
    assert _mount_options(tmp_path / "is-not-there" / "data") == {"noexec", "ro"}
    assert _mount_options(tmp_path.parent) == set()
