"""Kernels of one session reach each other by name, and their commands start only when they can."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from typing import TYPE_CHECKING

from retinue.agent import daemon
from retinue.agent.network import namespaces
from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.manager_side import attempt
from tests.integration.agent.network.sessions import ASK, KERNELS, NAMES, SERVE, SESSION, network
from tests.support.eventually import eventually

if TYPE_CHECKING:
    import pytest

    from tests.integration.agent.conftest import Agent


async def test_session_on_one_node(agent: Agent) -> None:
    manager = await agent.converse()
    programs = {"main1": ASK, "sub1": SERVE, "sub2": SERVE}
    attempts = [
        attempt(
            KERNELS[name], "/usr/bin/python3", "-c", programs[name], session_id=SESSION, hostname=name, networked=True
        )
        for name in NAMES
    ]
    # Attempts may come before their network; nothing is created until it is there.
    await manager.snapshot(*attempts)
    first = attempts[0].id
    await manager.until_state(first, pb.ATTEMPT_STATE_ACCEPTED)
    await manager.change(networks=[network()])
    for wanted in attempts:
        status = await manager.until_state(wanted.id, pb.ATTEMPT_STATE_EXITED)
        assert (status.exit_code, status.reason) == (0, "EXITED"), status
    logs = [piece.data async for piece in manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id=first))]
    assert b"".join(logs) == b"sub1 sub1\nsub2 sub2\n"
    # The network goes after the last attempt of its session, whatever the order of the reports.
    await manager.change(removed_network_session_ids=[SESSION])
    again = await agent.converse(term=2)
    assert SESSION in again.networks
    await again.snapshot()
    await again.until(lambda: not again.networks and len(again.removed) == len(NAMES))
    assert not [name for name in namespaces.names() if name.startswith(f"rt-{agent.settings.agent_id}-")]


async def test_network_survives_a_restart_of_the_agent(agent: Agent) -> None:
    manager = await agent.converse()
    talk = "import socket, time\ns = socket.create_server(('', 7000))\nwhile True:\n c, _ = s.accept(); c.sendall(b'x'); c.close()"
    ask = (
        "import socket, time, os\n"
        "def ok():\n"
        "    with socket.create_connection(('sub1', 7000), timeout=300) as c: return c.recv(1) == b'x'\n"
        "while not os.path.exists('/home/work/go'): time.sleep(0.02)\n"
        "while True:\n"
        "    try: print(ok()); break\n"
        "    except ConnectionRefusedError: time.sleep(0.05)"
    )
    attempts = [
        attempt(KERNELS["main1"], "/usr/bin/python3", "-c", ask, session_id=SESSION, hostname="main1", networked=True),
        attempt(KERNELS["sub1"], "/usr/bin/python3", "-c", talk, session_id=SESSION, hostname="sub1", networked=True),
    ]
    await manager.snapshot(*attempts, networks=(network(),))
    for wanted in attempts:
        await manager.until_state(wanted.id, pb.ATTEMPT_STATE_RUNNING)
    await agent.stop()
    await agent.start()
    manager = await agent.converse(term=2)
    await manager.snapshot(*attempts, networks=(network(),))
    (agent.settings.scratch_dir / attempts[0].id / "go").touch()
    status = await manager.until_state(attempts[0].id, pb.ATTEMPT_STATE_EXITED)
    assert status.exit_code == 0
    logs = [piece.data async for piece in manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id=attempts[0].id))]
    assert b"".join(logs) == b"True\n"
    await manager.change(removed_attempt_ids=[wanted.id for wanted in attempts], removed_network_session_ids=[SESSION])
    await manager.until(lambda: not manager.networks and len(manager.removed) == 2)


async def test_links_that_others_delete_come_back(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    await agent.stop()
    monkeypatch.setattr(daemon, "INSPECTION_INTERVAL", 0.1)
    await agent.start()
    manager = await agent.converse()
    spread = network()
    # Of the machine's own network, which all that runs here has in common.
    spread.vni = 1 + secrets.randbelow(2**24 - 1)
    spread.members[1].local = False
    spread.members[1].underlay_address = "127.0.0.2"
    wanted = attempt(KERNELS["main1"], session_id=SESSION, hostname="main1", networked=True)
    await manager.snapshot(wanted, networks=(spread,))
    await manager.until_state(wanted.id, pb.ATTEMPT_STATE_RUNNING)
    (name,) = [name for name in namespaces.names() if name.startswith(f"rt-{agent.settings.agent_id}-")]
    enter = ["/usr/bin/nsenter", f"--net=/run/netns/{name}", "/usr/sbin/ip"]

    def links() -> set[str]:
        shown = subprocess.run([*enter, "-j", "link", "show"], check=True, capture_output=True)
        return {link["ifname"] for link in json.loads(shown.stdout)}

    before = links()
    assert "vx0" in before
    for link in before - {"lo"}:
        await asyncio.to_thread(subprocess.run, [*enter, "link", "del", link], check=True)
        await eventually(lambda: links() == before)
    assert not manager.conditions
