"""Published ports of real process kernels: health is reported when it changes, and a router reaches the program."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.probes.core import machine
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.types.v1 import probe_pb2, terminal_pb2
from tests.integration.agent.manager_side import Conversation, attempt
from tests.integration.agent.network.nodes import run
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.agent.settings import Settings
    from tests.integration.agent.conftest import Agent

K1 = "11111111-0000-4000-8000-000000000001"
ID = f"{K1}.1"
ANY = ""
PYTHON = "/usr/bin/python3"
PORT = 8000
# Answers 503 while a file is there, and listens at the given port.
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"ok"
        if self.path == "/metrics":
            body = b'# TYPE depth gauge\\ndepth{model="a"} 3\\ndepth{model="b"} 4.5\\nother 1\\n'
        self.send_response(503 if os.path.exists("busy") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer((sys.argv[1], 8000), Handler).serve_forever()
"""


def probe(period: float = 0.1, **values: object) -> probe_pb2.Probe:
    """A probe that is asked often, and whose answers may take their time."""
    message = probe_pb2.Probe(**values)  # type: ignore[arg-type]
    message.period.FromMilliseconds(round(period * 1000))
    message.timeout.FromSeconds(round(NEVER))
    return message


def published(*command: str, **probes: Any) -> pb.Attempt:
    wanted = attempt(K1, *command, goal=pb.GOAL_RUNNING)
    wanted.published.CopyFrom(pb.PublishedPort(port=PORT, **probes))
    return wanted


@pytest.fixture
def settings(settings: Settings) -> Iterator[Settings]:
    """The agent's, with an address of the node that is not of its loopback network, from networks for tests (RFC 2544).
    So many that two runs at a time hardly have the same.
    """
    address = str(ipaddress.IPv4Network("198.18.0.0/15")[secrets.randbelow(1 << 17)])
    link = f"rtt{secrets.token_hex(4)}"
    run("ip", "link", "add", link, "type", "veth", "peer", f"{link}p")
    try:
        run("ip", "addr", "add", f"{address}/32", "dev", link)
        for end in (link, f"{link}p"):
            run("ip", "link", "set", end, "up")
        yield replace(settings, underlay_address=address, listen=f"{address}:0")
    finally:
        run("ip", "link", "del", link)


async def until_health(manager: Conversation, state: int, message: str = "") -> pb.AttemptStatus:
    def is_so() -> bool:
        health = manager.statuses[ID].health
        return health.state == state and message in health.message

    await manager.until(lambda: ID in manager.statuses and is_so())
    return manager.statuses[ID]


async def execute(manager: Conversation, *command: str) -> None:
    spec = terminal_pb2.CommandSpec(command=command)
    call = manager.stub.Attach()
    await call.write(pb.AttachRequest(start=pb.AttachStart(attempt_id=ID, spec=spec)))
    await call.done_writing()
    assert [each.output.exited.exit_code async for each in call if each.output.HasField("exited")] == [0]


def ask(address: str, port: int) -> bytes:
    with socket.create_connection((address, port), NEVER) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n")[0]


async def test_health_turns_with_the_answers_and_a_router_reaches_the_program(agent: Agent) -> None:
    manager = await agent.converse()
    http = probe(http=probe_pb2.HttpProbe(path="/health"), failures=2)
    await manager.snapshot(published(PYTHON, "-c", SERVER, ANY, readiness=http))
    status = await until_health(manager, pb.HEALTH_STATE_READY)
    assert status.state == pb.ATTEMPT_STATE_RUNNING
    where = status.published
    assert 61_000 <= where.port < 63_768
    # No address is let in before a router is known.
    with socket.socket() as client:
        assert await asyncio.to_thread(client.connect_ex, (where.address, where.port)) != 0
    await manager.change(added_router_addresses=[where.address])
    await until_reached(where)
    await execute(manager, "touch", "busy")
    status = await until_health(manager, pb.HEALTH_STATE_UNREADY)
    assert status.health.message == "its readiness probe failed: GET /health answers 503"
    since = status.health.since_time.ToNanoseconds()
    await execute(manager, "rm", "busy")
    status = await until_health(manager, pb.HEALTH_STATE_READY)
    assert status.health.since_time.ToNanoseconds() > since
    # An agent that starts again publishes at the same number, and asks again.
    await agent.stop()
    await agent.start()
    manager = await agent.converse()
    assert manager.statuses[ID].published == where
    await manager.snapshot(published(PYTHON, "-c", SERVER, ANY, readiness=http))
    await until_health(manager, pb.HEALTH_STATE_READY)
    await manager.change(removed_attempt_ids=[ID])
    await manager.until(lambda: ID in manager.removed)


async def until_reached(where: pb.PublishedAddress) -> None:
    """Asks until it is answered: rules are changed beside the stream."""
    answer = await eventually(
        lambda: asyncio.to_thread(ask, where.address, where.port), ignoring=ConnectionRefusedError
    )
    assert answer == b"HTTP/1.0 200 OK"


async def test_a_program_that_listens_for_itself_only_is_reported(agent: Agent) -> None:
    manager = await agent.converse()
    await manager.snapshot(published(PYTHON, "-c", SERVER, "127.0.0.1", readiness=probe(tcp=probe_pb2.TcpProbe())))
    status = await until_health(manager, pb.HEALTH_STATE_STARTING, "127.0.0.1 only")
    assert status.health.message.startswith("its readiness probe failed: port 8000 listens on 127.0.0.1 only")


async def test_a_command_is_asked_before_readiness_and_a_dead_program_is_stopped(agent: Agent) -> None:
    manager = await agent.converse()
    wanted = published(
        PYTHON,
        "-c",
        SERVER,
        ANY,
        startup=probe(exec=probe_pb2.ExecProbe(command=["test", "-e", "started"]), failures=1),
        readiness=probe(http=probe_pb2.HttpProbe()),
        liveness=probe(exec=probe_pb2.ExecProbe(command=["test", "!", "-e", "dead"]), failures=2),
    )
    await manager.snapshot(wanted)
    await until_health(manager, pb.HEALTH_STATE_STARTING, "its startup probe failed: test ends with 1")
    await execute(manager, "touch", "started")
    await until_health(manager, pb.HEALTH_STATE_READY)
    await execute(manager, "touch", "dead")
    status = await manager.until_state(ID, pb.ATTEMPT_STATE_EXITED)
    assert not status.HasField("health")
    assert not status.HasField("published")


async def test_metrics_that_a_program_shows_are_reported_as_long_as_it_does(agent: Agent) -> None:
    manager = await agent.converse()
    wanted = published(PYTHON, "-c", SERVER, ANY, readiness=probe(http=probe_pb2.HttpProbe()), metrics_path="/metrics")
    await manager.snapshot(wanted)
    await until_health(manager, pb.HEALTH_STATE_READY)
    watch = pb.WatchUsage(metrics=[pb.WatchedMetrics(attempt_id=ID, names=["depth", "absent"])])
    watch.interval.FromMilliseconds(100)
    await manager.call.write(pb.SyncRequest(watch_usage=watch))
    await manager.until(lambda: ID in manager.usages and dict(manager.usages[ID].metrics) == {"depth": 7.5})
    usage = manager.usages[ID]
    assert usage.HasField("cpu_time")
    assert not usage.HasField("gpu_percent")
    # A page that is no longer there is unknown, and not as it was.
    await execute(manager, "touch", "busy")
    await manager.until(lambda: not manager.usages[ID].metrics)


async def test_a_program_that_answers_routers_is_not_stopped(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    # What has not succeeded yet is asked so often, and what answers is let be for a period.
    monkeypatch.setattr(machine, "FIRST_PERIOD", 0.1)
    manager = await agent.converse()
    # The first question is not answered before the agent knows of the answer to a router.
    asked = probe_pb2.ExecProbe(command=["sh", "-c", "echo >> asked; until [ -e go ]; do sleep 0.1; done; exit 1"])
    wanted = published(PYTHON, "-c", SERVER, ANY, liveness=probe(exec=asked, period=100_000.0, failures=2))
    await manager.snapshot(wanted)
    await manager.until_state(ID, pb.ATTEMPT_STATE_RUNNING)
    asked_times = "until [ $(cat asked 2>/dev/null | wc -l) -ge {} ]; do sleep 0.1; done"
    await execute(manager, "sh", "-c", asked_times.format(1))
    await manager.call.write(pb.SyncRequest(responsive_attempts=pb.ResponsiveAttempts(attempt_ids=[ID, "no attempt"])))
    # The agent takes messages in one after the other.
    await manager.change(attempts=[attempt("later", "true", session_id="later")])
    await manager.until_state("later.1", pb.ATTEMPT_STATE_EXITED)
    await execute(manager, "touch", "go")
    await execute(manager, "sh", "-c", asked_times.format(5))
    await execute(manager, "true")
