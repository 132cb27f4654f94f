"""Virtual machines and processes of one session reach each other by name, through the network that any kernel has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.network import namespaces
from retinue.agent.network.egress import Egress
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.types.v1 import isolation_pb2
from tests.integration.agent.manager_side import attempt
from tests.integration.agent.network.nodes import run
from tests.integration.agent.network.sessions import ASK, KERNELS, NAMES, SERVE, SESSION, network
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.integration.agent.conftest import Agent
    from tests.integration.agent.vm.conftest import Vms

SSH = """
import os, subprocess
os.environ |= {"BACKENDAI_CLUSTER_HOST": "main1", "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2"}
for name in ("sub1", "sub2", "main1"):
    done = subprocess.run(["ssh", name, "hostname"], capture_output=True, text=True)
    print("by ssh:", done.stdout.strip() or done.stderr, flush=True)
done = subprocess.run(["srun", "hostname"], capture_output=True, text=True)
print("tasks in:", *sorted(done.stdout.split()), done.stderr, flush=True)
for name in ("sub1", "sub2"):
    socket.create_connection((name, 7000), timeout=300)
"""
ADDRESS = "10.200.0.1"
AGAIN = "server.accept()\n"


async def test_an_egress_link_leads_into_a_machine(vms: Vms) -> None:
    egress = Egress(vms.place.agent_id, 1500)
    runtime = await vms.held(vms.spec("k", "/usr/bin/python3", "-c", SERVE + AGAIN, egress=True))
    kernel = runtime.kernel("k.1")
    await egress.attach("k.1", kernel.network_attachment())
    # A second time, as after an interface was made again.
    await runtime.mark_attached("k.1")
    await runtime.mark_attached("k.1")
    await runtime.start("k.1")
    address = (await egress.addresses(["k.1"]))["k.1"]

    async def answer() -> bytes:
        reader, writer = await asyncio.open_connection(address, 7000)
        try:
            return await reader.read(100)
        finally:
            writer.close()
            await writer.wait_closed()

    assert await eventually(answer, ignoring=OSError) == b"main1"
    usage = await asyncio.to_thread(kernel.usage)
    assert usage is not None
    assert usage.received is not None
    assert usage.received > 0
    # Ports are reached from the agent as well, on the guest's loopback.
    connection = await runtime.kernel("k.1").connect(7000, ("127.0.0.1",))
    connection.close()
    ended = await vms.until("k.1", Phase.EXITED)
    assert ended.exit_code == 0, vms.printed("k.1")
    await egress.remove("k.1")
    await runtime.remove("k.1")
    assert not vms.left()


async def test_a_machine_of_a_sessions_network_has_one_address(vms: Vms) -> None:
    egress = Egress(vms.place.agent_id, 1500)
    show = (
        "import subprocess; print(subprocess.run(['ip', '-4', '-o', 'addr'], capture_output=True, text=True).stdout)\n"
    )
    spec = vms.spec("k", "/usr/bin/python3", "-c", show + SERVE + AGAIN, networked=True, egress=True)
    runtime = await vms.held(spec)
    attachment = runtime.kernel("k.1").network_attachment()
    with attachment.opened() as descriptor:
        namespaces.run_inside(descriptor, _make_session_link)
    await egress.attach("k.1", attachment, ADDRESS)
    # A second time, as after an interface was made again.
    for _ in range(2):
        await runtime.mark_attached("k.1")
    await runtime.start("k.1")
    node_knows = (await egress.addresses(["k.1"]))["k.1"]

    async def answer() -> bytes:
        reader, writer = await asyncio.open_connection(node_knows, 7000)
        try:
            return await reader.read(100)
        finally:
            writer.close()
            await writer.wait_closed()

    # What comes by the egress link reaches the session's address, and so does the answer the node.
    assert await eventually(answer, ignoring=OSError) == b"main1"
    # Probes connect inside, to the address that routers have: the guest has another, and the node is not asked.
    with attachment.opened() as descriptor:
        namespaces.run_inside(descriptor, lambda: run("ip", "link", "set", "out0", "down"))
    with await runtime.kernel("k.1").connect(7000, (node_knows,)):
        await vms.until("k.1", Phase.EXITED)
    addresses = [line.split()[3] for line in vms.printed("k.1").splitlines() if " inet " in line]
    assert addresses == ["127.0.0.1/8", f"{ADDRESS}/24"]
    await egress.remove("k.1")
    await runtime.remove("k.1")
    assert not vms.left()


def _make_session_link() -> None:
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "other0")
    run("ip", "addr", "add", f"{ADDRESS}/24", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")


async def test_a_session_of_machines_and_a_process(agent: Agent) -> None:
    manager = await agent.converse()
    programs = {"main1": ASK + SSH, "sub1": SERVE + AGAIN, "sub2": SERVE + AGAIN}
    kinds = {
        "main1": isolation_pb2.ISOLATION_VM,
        "sub1": isolation_pb2.ISOLATION_PROCESS,
        "sub2": isolation_pb2.ISOLATION_VM,
    }
    attempts = [
        attempt(
            KERNELS[name],
            *("/usr/bin/python3", "-c", programs[name]),
            session_id=SESSION,
            hostname=name,
            networked=True,
            session_secret=bytes(32),
            isolation=kinds[name],
            slots={"cpu": 1000, "mem": 256 << 20},
        )
        for name in NAMES
    ]
    await manager.snapshot(*attempts, networks=(network(),))

    def statuses() -> list[pb.AttemptStatus]:
        found = (manager.statuses.get(wanted.id, pb.AttemptStatus()) for wanted in attempts)
        return [status for status in found if status.state in {pb.ATTEMPT_STATE_EXITED, pb.ATTEMPT_STATE_FAILED}]

    while len(statuses()) < len(attempts):
        await manager.step()
    assert [(status.exit_code, status.reason) for status in statuses()] == [(0, "EXITED")] * 3, statuses()
    logs = [piece.data async for piece in manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id=attempts[0].id))]
    expected = ["sub1 sub1", "sub2 sub2", "by ssh: sub1", "by ssh: sub2", "by ssh: main1"]
    expected.append("tasks in: main1 sub1 sub2 ")
    assert b"".join(logs).decode().splitlines() == expected
    await manager.change(removed_attempt_ids=[wanted.id for wanted in attempts])
    await manager.until(lambda: not manager.statuses)
