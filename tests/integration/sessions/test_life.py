"""Sessions on real nodes, from request to end."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from retinue.client.errors import Aborted, AlreadyExists, InvalidRequest
from retinue.devtools.leftovers import network_namespaces
from retinue.devtools.nodes import links_of_kind
from retinue.manager.v1 import session_pb2
from tests.integration.sessions.inside import UNTIL_FINISHED, finish, printed
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHOW_ENVIRONMENT = "env | grep BACKENDAI_ | sort; hostname; cat /etc/hosts; cat /proc/self/status | grep ^Uid"


async def test_batch_has_output_exit_code_and_result(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["sh", "-c", "echo out; echo err >&2; exit 3"])
    await session.wait_ended(NEVER)
    assert (session.state, session.result, session.exit_code) == ("TERMINATED", "FAILED", 3)
    # Nothing says which of two streams was written to first.
    assert sorted((await printed(session)).splitlines()) == ["err", "out"]
    # Of a kernel that runs, and of one whose output was collected.
    streams = {chunk.stream: chunk.data async for chunk in client.sessions.logs(session.id)}
    assert streams == {"stdout": b"out\n", "stderr": b"err\n"}


async def test_every_kernel_has_the_cluster_variables_and_names(client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", f"{SHOW_ENVIRONMENT}; {UNTIL_FINISHED}"],
        sub_command=["sh", "-c", f"{SHOW_ENVIRONMENT}; sleep infinity"],
        cluster_size=3,
        cluster_mode="multi-node",
        slots={"cpu": "2", "mem": "128m"},
    )
    await session.wait("RUNNING", timeout=NEVER)
    for kernel in session.kernels:
        await eventually(partial(printed, session, kernel.hostname), lambda text: "Uid:" in text)
    await finish(session)
    await session.wait_ended(NEVER)
    assert session.result == "SUCCESS"
    addresses = {kernel.hostname: kernel.address for kernel in session.kernels}
    for kernel in session.kernels:
        text = await printed(session, kernel.hostname)
        assert f"BACKENDAI_CLUSTER_HOST={kernel.hostname}\n" in text
        assert "BACKENDAI_CLUSTER_HOSTS=main1,sub1,sub2\n" in text
        assert "BACKENDAI_CLUSTER_MODE=multi-node\n" in text
        assert f"BACKENDAI_CLUSTER_LOCAL_RANK={kernel.local_rank}\n" in text
        assert f"BACKENDAI_KERNEL_ID={kernel.id}\n" in text
        assert f"BACKENDAI_SESSION_ID={session.id}\n" in text
        assert f"BACKENDAI_SESSION_NUMBER={session.number}\n" in text
        assert f"\n{kernel.hostname}\n" in text
        assert "Uid:\t0" not in text
        for hostname, address in addresses.items():
            assert any(line.split()[:2] == [address, hostname] for line in text.splitlines()), (hostname, text)
    assert session.kernels[0].id == session.id


async def test_kernels_reach_each_other_by_name_across_nodes(client: Client, cluster: Cluster) -> None:
    serve = "import socket; s = socket.create_server(('', 7000)); c, _ = s.accept(); c.sendall(b'from ' + socket.gethostname().encode())"
    ask = (
        "import socket\n"
        "for host in ('sub1', 'sub2'):\n"
        "    while True:\n"
        "        try: c = socket.create_connection((host, 7000), 5); break\n"
        "        except OSError: __import__('time').sleep(0.05)\n"
        "    c.settimeout(None)\n"
        "    print(c.recv(100).decode(), flush=True)\n"
    )
    session = await client.sessions.create(
        type="batch",
        command=["/usr/bin/python3", "-c", ask],
        sub_command=["/usr/bin/python3", "-c", serve],
        cluster_size=3,
        cluster_mode="multi-node",
        slots={"cpu": "2", "mem": "128m"},
    )
    await session.wait("RUNNING", timeout=NEVER)
    assert len({kernel.agent for kernel in session.kernels}) == 2
    assert session.view.network == session_pb2.NETWORK_KIND_VXLAN
    await session.wait_ended(NEVER)
    assert (await printed(session)).split("\n")[:2] == ["from sub1", "from sub2"]
    assert session.result == "SUCCESS"


async def test_cluster_that_fits_one_node_gets_a_bridge(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(
        type="interactive", cluster_size=3, cluster_mode="multi-node", slots={"cpu": "1", "mem": "64m"}
    )
    await session.wait("RUNNING", timeout=NEVER)
    assert len({kernel.agent for kernel in session.kernels}) == 1
    assert session.view.network == session_pb2.NETWORK_KIND_BRIDGE

    def namespaces() -> list[str]:
        return [name for agent in cluster.agents for name in network_namespaces(agent.id)]

    # That of a session which has ended before goes a little later.
    (namespace,) = await eventually(namespaces, lambda found: len(found) == 1)
    assert await asyncio.to_thread(links_of_kind, namespace, "bridge")
    assert not await asyncio.to_thread(links_of_kind, namespace, "vxlan")
    await session.terminate()
    await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


@pytest.mark.attack("beyond-quotas")
async def test_session_that_fits_nowhere_waits_and_says_why(client: Client) -> None:
    session = await client.sessions.create(type="interactive", cluster_size=3, slots={"cpu": "2", "mem": "64m"})
    async for event in client.sessions.watch(after_revision=session.revision, session_id=session.id):
        if event.HasField("reason_changed"):
            break
    explanation = await client.sessions.explain(session.id)
    assert explanation.state == session_pb2.SESSION_STATE_PENDING
    assert explanation.reason == "EXCEEDS_LARGEST_AGENT"
    assert explanation.queue_position == 1
    assert [(s.slot, s.requested) for s in explanation.shortfalls] == [("cpu", "6")]
    await session.refresh()
    assert session.view.reason == explanation.reason
    assert "cpu" in session.view.message
    await session.terminate()
    await session.wait_ended(NEVER)
    assert session.state == "CANCELLED"


async def test_interactive_session_stays_until_terminated(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(type="interactive", name="stays")
    await session.wait("RUNNING", timeout=NEVER)
    with pytest.raises(AlreadyExists):
        await client.sessions.create(type="interactive", name="stays")
    assert (await client.sessions.get("stays")).id == session.id
    assert (await client.sessions.get(session.id[:8])).id == session.id
    ending = await client.sessions.terminate("stays")
    assert (ending.state, ending.incarnation) == ("TERMINATING", session.incarnation)
    assert ending.revision > session.revision
    await ending.wait_ended(NEVER)
    await session.wait_ended(NEVER)
    again = await client.sessions.terminate(session.id)
    assert again.state == "TERMINATED"
    assert (await client.sessions.get("stays")).id == session.id
    assert not await cluster.wait_clean(NEVER)


async def test_command_that_does_not_exist_fails_with_127(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["/no/such/program"])
    await session.wait_ended(NEVER)
    assert (session.result, session.exit_code) == ("FAILED", 127)
    assert "/no/such/program" in await printed(session)


async def test_memory_limit_kills_with_its_reason(client: Client) -> None:
    eat = "x = bytearray(200 * 1024 * 1024); print(len(x))"
    session = await client.sessions.create(
        type="batch", command=["/usr/bin/python3", "-c", eat], slots={"cpu": "1", "mem": "64m"}
    )
    await session.wait_ended(NEVER)
    assert (session.result, session.exit_code, session.view.reason) == ("FAILED", 137, "OOM_KILLED")


async def test_a_child_that_is_killed_for_want_of_memory_is_a_condition(client: Client) -> None:
    """While the session runs, when it has succeeded, and in its history, where it comes before the end."""
    eat = "/usr/bin/python3 -c 'bytearray(200 * 1024 * 1024)'"
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", f"{eat}; {UNTIL_FINISHED}"], slots={"cpu": "1", "mem": "64m"}
    )
    said = [("OOM_KILLED", "main1: 1 process was killed, as its memory was used up")]

    def conditions() -> list[tuple[str, str]]:
        return [(item.type, item.message) for item in session.view.conditions]

    await eventually(session.refresh, lambda found: found.state == "RUNNING" and conditions() == said)
    await finish(session)
    await session.wait_ended(NEVER)
    await session.refresh()
    assert (session.result, session.view.reason, conditions()) == ("SUCCESS", "COMMAND_ENDED", said)
    assert session.view.conditions[0].HasField("since_time")
    assert (await client.sessions.explain(session.id)).conditions == session.view.conditions
    kinds = [event.WhichOneof("change") for event in await client.sessions.history(session.id)]
    assert kinds.index("reason_changed") < len(kinds) - 1
    assert kinds[-1] == "session_moved"


@pytest.mark.attack("reused-request-ids", "concurrent-creates")
async def test_repeated_create_answers_with_the_first_session(client: Client) -> None:
    request_id = str(uuid.uuid4())
    spec: dict[str, Any] = {"type": "batch", "command": ["true"], "slots": {"cpu": "64"}}
    sessions = await asyncio.gather(*(client.sessions.create(request_id=request_id, **spec) for _ in range(32)))
    assert len({session.id for session in sessions}) == 1
    with pytest.raises(InvalidRequest) as raised:
        await client.sessions.create(request_id=request_id, type="batch", command=["false"])
    assert raised.value.reason == "REQUEST_ID_REUSED"
    await sessions[0].terminate()


async def test_validate_only_makes_nothing(client: Client) -> None:
    before = {session.id async for session in client.sessions.list(show_ended=True)}
    shown = await client.sessions.create(type="batch", command=["true"], cluster_size=2, validate_only=True)
    assert [kernel.hostname for kernel in shown.kernels] == ["main1", "sub1"]
    assert {session.id async for session in client.sessions.list(show_ended=True)} == before


@pytest.mark.attack("stale-etags")
async def test_termination_checks_the_etag(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"})
    with pytest.raises(Aborted) as raised:
        await client.sessions.terminate(session.id, etag="other")
    assert raised.value.reason == "ETAG_MISMATCH"
    await session.refresh()
    await client.sessions.terminate(session.id)


async def test_force_cuts_the_grace_of_a_session_that_is_ending(client: Client) -> None:
    stubborn = "trap 'echo asked' TERM; while true; do sleep 0.3; echo on; done"
    session = await client.sessions.create(type="interactive", command=["sh", "-c", stubborn], termination_grace=300)
    await session.wait("RUNNING", timeout=NEVER)
    # The trap is set.
    await eventually(lambda: printed(session), lambda text: "on\n" in text)
    await session.terminate()
    # By then the agent has reported that it stops the kernel, and has nothing more to report
    # before the end of the grace.
    await eventually(lambda: printed(session), lambda text: "on\n" * 5 in text.partition("asked\n")[2])
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_lists_page_by_page_and_by_filter(client: Client) -> None:
    made = [
        await client.sessions.create(
            type="batch", command=["true"], slots={"cpu": "64"}, labels={"set": "pages"}, name=f"page-{n}"
        )
        for n in range(5)
    ]
    listed = [
        session.id async for session in client.sessions.list(filter='labels.set = "pages"', order_by="create_time")
    ]
    assert listed == [session.id for session in made]
    newest = [session.id async for session in client.sessions.list(filter='labels.set = "pages" AND name != "page-2"')]
    assert newest == [made[n].id for n in (4, 3, 1, 0)]
    await asyncio.gather(*(session.terminate() for session in made))
    states = [
        s.state
        async for s in client.sessions.list(
            filter='labels.set = "pages" AND state = "SESSION_STATE_CANCELLED"', show_ended=True
        )
    ]
    assert states == ["CANCELLED"] * 5


async def test_logs_are_followed_and_resumed_by_offset(client: Client) -> None:
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", "for n in 1 2 3 4 5; do echo line $n; sleep 0.1; done"]
    )
    await session.wait("RUNNING", timeout=NEVER)
    followed = b"".join([chunk.data async for chunk in session.logs(follow=True)])
    assert followed == b"".join(b"line %d\n" % n for n in range(1, 6))
    await session.wait_ended(NEVER)
    assert b"".join([chunk.data async for chunk in client.sessions.logs(session.id, offset=14)]) == followed[14:]


async def test_kernels_see_their_limits(client: Client) -> None:
    script = (
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null;"
        "cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null"
    )
    session = await client.sessions.create(type="batch", command=["sh", "-c", script], slots={"cpu": "1", "mem": "96m"})
    await session.wait_ended(NEVER)
    assert (await printed(session)).split() == [str(96 * 2**20), "4096"]
