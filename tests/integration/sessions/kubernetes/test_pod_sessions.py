"""Whole sessions whose kernels are pods of a real Kubernetes, one of them beside a container on another node."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from retinue.agent.host.processes import alive
from retinue.agent.kubernetes.pod_processes import first_process_of
from retinue.client.errors import CallError
from retinue.devtools.leftovers import network_namespaces
from retinue.devtools.nodes import links_of_kind
from retinue.manager.v1 import session_pb2
from tests.integration.agent.docker.engine import IMAGE
from tests.integration.sessions.inside import finish, printed, until_printed
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client, Session
    from tests.integration.client.command.conftest import Program
    from tests.integration.sessions.kubernetes.pod_cluster import PodCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

COUNT = "i=0; while [ ! -e finish ]; do i=$((i+1)); echo $i; sleep 0.3; done; exit 5"
SERVE = "echo on; while :; do hostname | nc -l -p 7000; done"


async def said(session: Session, hostname: str, script: str) -> str:
    async with asyncio.timeout(NEVER), session.attach(["sh", "-c", script], hostname=hostname) as command:
        await command.end_input()
        return b"".join([piece.data async for piece in command]).decode()


async def test_a_pod_and_a_container_are_one_gang(client: Client, cluster: PodCluster) -> None:
    session = await client.sessions.create(
        type="interactive",
        image=IMAGE,
        command=["sh", "-c", SERVE],
        sub_command=["sh", "-c", SERVE],
        cluster_size=2,
        cluster_mode="multi-node",
        slots={"cpu": "1.2", "mem": "64m"},
        ports=[("name", "tcp", 7000)],
        termination_grace=0,
    )
    await session.wait("RUNNING", timeout=NEVER)
    assert {kernel.agent for kernel in session.kernels} == {cluster.docker.id, cluster.pods.id}
    assert session.view.network == session_pb2.NETWORK_KIND_VXLAN
    by_agent = {kernel.agent: kernel for kernel in session.kernels}
    pod = by_agent[cluster.pods.id]
    assert await asyncio.to_thread(cluster.kube.pods) == {f"retinue-{pod.id}.1"}
    for agent in (cluster.docker, cluster.pods):
        (network,) = await asyncio.to_thread(network_namespaces, agent.id)
        assert await asyncio.to_thread(links_of_kind, network, "vxlan")
    for here, there in (("main1", "sub1"), ("sub1", "main1")):
        await eventually(partial(printed, session, here), lambda text: text == "on\n")
        # Between two callers, nothing listens for a moment.
        ask = f"until nc {there} 7000 </dev/null; do sleep 0.1; done"
        look = f"hostname; ssh {there} 'hostname; id -un'; {ask}; ls /sys/class/net; exit 4"
        lines = (await said(session, here, look)).splitlines()
        assert lines[:4] == [here, there, "work", there]
        assert len(lines[4:]) <= 3, lines
        # A pod and a container have, with egress, the session's address and no other.
        shown = await said(session, here, "ip -4 -o addr show scope global; ip route show default")
        (kernel,) = (one for one in session.kernels if one.hostname == here)
        assert [line.split()[3] for line in shown.splitlines() if " inet " in line] == [f"{kernel.address}/28"]
        assert "dev out0" in shown
        tasks = await said(session, here, "srun -l sh -c 'hostname; exit 3' 2>/dev/null; echo $?")
        assert sorted(tasks.splitlines()) == ["0: main1", "1: sub1", "3"]

    async def name() -> list[bytes]:
        async with session.open_port("name") as port:
            return [piece async for piece in port]

    assert await eventually(name, ignoring=CallError) == [b"main1\n"]
    await session.terminate()
    await session.wait_ended(NEVER)


async def test_the_tour_of_two_minutes_on_pods(client: Client, cluster: PodCluster, retinue: Program) -> None:
    on_pods = ("--image", IMAGE, "--agent", cluster.pods.id, "--strict-agents", "--slots", "cpu=0.3,mem=64m")
    batch = await retinue(
        "run", "--type", "batch", *on_pods, "--", "sh", "-c", "echo hello from $BACKENDAI_CLUSTER_HOST"
    )
    assert (batch.code, batch.out) == (0, "hello from main1\n"), batch.err
    gang = await retinue(
        *("run", "--type", "batch", *on_pods, "--size", "3", "--mode", "multi-node", "--sub-command", "sleep 1000"),
        *("--", "sh", "-c", "cat /etc/hosts; for host in sub1 sub2; do ssh $host hostname; done; exit 3"),
    )
    assert gang.code == 3, gang.err
    lines = gang.out.splitlines()
    assert [line.split()[1] for line in lines[:-2] if "localhost" not in line] == ["main1", "sub1", "sub2"]
    assert lines[-2:] == ["sub1", "sub2"]
    play = await retinue("run", "--type", "interactive", "--name", "play", *on_pods, "--", "sh", "-c", SERVE)
    assert play.code == 0, play.err
    await until_printed(await client.sessions.get("play"), b"on\n")
    logs = await retinue("logs", "play")
    assert (logs.code, logs.out) == (0, "on\n"), logs.err
    command = await retinue("exec", "play", "--", "sh", "-c", "hostname; exit 6")
    assert (command.code, command.out) == (6, "main1\n"), command.err
    explained = await retinue("explain", "play")
    assert explained.code == 0, explained.err
    removed = await retinue("rm", "play", "--wait")
    assert removed.code == 0, removed.err
    shown = await retinue("ls", "-o", "name")
    assert shown.out == ""


@pytest.mark.parametrize("what", ["kubelet", "api", "agent"])
async def test_a_pod_counts_on_while_a_part_is_killed(client: Client, cluster: PodCluster, what: str) -> None:
    session = await client.sessions.create(
        type="batch",
        image=IMAGE,
        command=["sh", "-c", COUNT],
        agents=[cluster.pods.id],
        agent_choice="strict",
        slots={"cpu": "0.3", "mem": "64m"},
    )
    await session.wait("RUNNING", timeout=NEVER)
    await eventually(lambda: printed(session), lambda text: text.count("\n") > 3)
    if what == "agent":
        cluster.pods.process.signal(signal.SIGKILL)
        await cluster.pods.process.wait(NEVER)
        await cluster.start_agent(1)
    else:
        await asyncio.to_thread(cluster.kube.end, what)
    try:
        before = (await printed(session)).count("\n")
        await eventually(lambda: printed(session), lambda text: text.count("\n") > before + 3)
        await finish(session)
        await session.wait_ended(NEVER)
    finally:
        if what == "kubelet":
            cluster.kube.start_program("kubelet")
        elif what == "api":
            await asyncio.to_thread(cluster.kube.start_api)
    assert (session.result, session.exit_code) == ("FAILED", 5)
    numbers = [int(line) for line in (await printed(session)).splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_an_evicted_batch_runs_again_on_another_node(client: Client, cluster: PodCluster) -> None:
    await client.agents.drain(cluster.docker.id)
    try:
        session = await client.sessions.create(
            type="batch",
            image=IMAGE,
            command=["sh", "-c", COUNT],
            max_attempts=2,
            retry_backoff=0.1,
            slots={"cpu": "0.3", "mem": "64m"},
        )
        await session.wait("RUNNING", timeout=NEVER)
    finally:
        await client.agents.undrain(cluster.docker.id)
    assert session.kernels[0].agent == cluster.pods.id
    await eventually(partial(printed, session), lambda text: text.count("\n") > 3)
    await asyncio.to_thread(cluster.kube.evict, f"retinue-{session.id}.1")
    await session.wait("PENDING", timeout=NEVER)
    assert (session.view.reason, session.view.message) == ("EVICTED", "main1 was evicted; try 2 of 2 follows")
    await session.wait("RUNNING", timeout=NEVER)
    assert (session.kernels[0].agent, session.kernels[0].attempt) == (cluster.docker.id, 2)
    await finish(session)
    await session.wait_ended(NEVER)
    assert (session.result, session.exit_code) == ("FAILED", 5)


async def test_a_lost_node_keeps_what_runs_there_and_frees_it_once_it_has_ended(
    client: Client, cluster: PodCluster
) -> None:
    """The pods are removed by force while kubelet and the agent are killed: their objects say nothing of what runs."""
    await client.agents.drain(cluster.docker.id)
    try:
        start = partial(
            client.sessions.create, image=IMAGE, command=["sh", "-c", COUNT], slots={"cpu": "0.3", "mem": "64m"}
        )
        kept = await start(type="interactive", agents=[cluster.pods.id], agent_choice="strict")
        again = await start(type="batch", max_attempts=2, retry_backoff=0.1)
        for session in (kept, again):
            await session.wait("RUNNING", timeout=NEVER)
            await eventually(partial(printed, session), lambda text: text.count("\n") > 3)
    finally:
        await client.agents.undrain(cluster.docker.id)
    assert again.kernels[0].agent == cluster.pods.id
    uids = await asyncio.to_thread(cluster.kube.uids)
    runs_on, runs_again = (first_process_of(uids[f"retinue-{session.id}.1"]) for session in (kept, again))
    assert runs_on is not None
    assert runs_again is not None
    for program in ("kubelet", "controllers"):
        await asyncio.to_thread(cluster.kube.end, program)
    # From now on the node says nothing.
    cluster.kube.start_program("controllers", "--node-monitor-grace-period=10s")
    try:
        cluster.pods.process.signal(signal.SIGKILL)
        await cluster.pods.process.wait(NEVER)
        await eventually(lambda: asyncio.to_thread(cluster.kube.is_ready), lambda ready: not ready)
        await asyncio.to_thread(cluster.kube.remove_pods)
        assert not await asyncio.to_thread(cluster.kube.pods)

        # What may run again elsewhere has been ended by then, without agent and cluster.
        await eventually(again.refresh, lambda _: again.kernels[0].attempt == 2)
        assert (alive(runs_on), alive(runs_again)) == (True, False)
        await again.wait("RUNNING", timeout=NEVER)
        assert again.kernels[0].agent == cluster.docker.id
        assert (await client.agents.get(cluster.pods.id)).occupied["cpu"] in {"0.3", "300m"}

        await cluster.start_agent(1)
        before = (await printed(kept)).count("\n")
        await eventually(lambda: printed(kept), lambda text: text.count("\n") > before + 3)
        assert (await kept.refresh()).state == "RUNNING"
        assert (await client.agents.get(cluster.pods.id)).occupied["cpu"] in {"0.3", "300m"}
    finally:
        await asyncio.to_thread(cluster.kube.end, "controllers")
        for program in ("controllers", "kubelet"):
            cluster.kube.start_program(program)
    # A kubelet that comes back ends what the cluster has no pod for.
    await kept.wait_ended(NEVER)
    await eventually(lambda: client.agents.get(cluster.pods.id), lambda agent: not agent.occupied)
    await finish(again)
    await again.wait_ended(NEVER)
    assert again.exit_code == 5
