"""The router as a process, with a leader of the test: enrolment, tables, acknowledgements, traffic, and what dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from retinue.devtools.cluster import free_ports
from retinue.proxy.program import program
from retinue.router.v1 import router_service_pb2 as pb
from retinue.router.v1 import router_service_pb2_grpc as pb_grpc
from tests.integration.agent.authority import Authority
from tests.integration.agent.manager_side import INCARNATION, TOKEN, Manager
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Load, read_answer, request
from tests.integration.router.running import COMMON, HOST, until_connected
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

SESSION = str(uuid.UUID(int=99))


@dataclass
class Router:
    """A router's process and the leader's view of it."""

    manager: Manager
    directory: Path
    clients: int
    metrics: int
    process: asyncio.subprocess.Process | None = None

    async def start(self, *options: str) -> None:
        arguments = ["--id", "r1", "--data-dir", self.directory, "--manager", self.manager.address]
        arguments += ["--join-token", TOKEN, "--ca-fingerprint", self.manager.authority.fingerprint]
        arguments += ["--listen", "127.0.0.1:0", "--clients", f"127.0.0.1:{self.clients}", "--plain-http"]
        arguments += ["--metrics", f"127.0.0.1:{self.metrics}", *options]
        with (self.directory.parent / "router.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "retinue.router.main", "run", *map(str, arguments), stdout=log, stderr=log
            )

    async def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        await self.process.wait()

    @property
    def engine(self) -> int:
        return int(json.loads((self.directory / "engine.json").read_text())["pid"])

    @property
    def engines(self) -> list[int]:
        """The engine and those from before it, as far as they run."""
        with contextlib.suppress(FileNotFoundError):
            values = json.loads((self.directory / "engine.json").read_text())
            return [int(found["pid"]) for found in (values, *values["former"])]
        return []

    @contextlib.asynccontextmanager
    async def led(self, term: int = 1) -> AsyncIterator[Leader]:
        async with asyncio.timeout(NEVER):
            address = await self.manager.announced()
        async with self.manager.channel("r1", address) as channel:
            yield Leader(pb_grpc.RouterServiceStub(channel).Sync(), term)


class Leader:
    """One stream to a router."""

    def __init__(self, call: Any, term: int) -> None:
        self.call = call
        self.term = term

    async def hello(self) -> pb.Welcome:
        # It sends none.
        heartbeat = Duration(seconds=int(NEVER))
        hello = pb.Hello(incarnation=INCARNATION, term=self.term, router_id="r1", heartbeat_interval=heartbeat)
        await self.call.write(pb.SyncRequest(hello=hello))
        return (await self.next("welcome")).welcome

    async def next(self, step: str) -> pb.SyncResponse:
        """The next response of this kind."""
        async with asyncio.timeout(NEVER):
            while True:
                response = await self.call.read()
                assert isinstance(response, pb.SyncResponse), await self.call.code()
                if response.WhichOneof("step") == step:
                    return response

    async def table(self, revision: int, *endpoints: pb.Endpoint) -> pb.Applied:
        common = pb.Common(token_key=COMMON.token_key)
        table = pb.Table(revision=revision, endpoints=endpoints, common=common)
        await self.call.write(pb.SyncRequest(table=table))
        return (await self.next("applied")).applied

    async def change(self, revision: int, *endpoints: pb.Endpoint, removed: Iterable[str] = ()) -> pb.Applied:
        change = pb.Change(revision=revision, endpoints=endpoints, removed_endpoint_ids=removed)
        await self.call.write(pb.SyncRequest(change=change))
        while (applied := (await self.next("applied")).applied).revision != revision:
            pass
        return applied


def toy(*ports: int, host: str = HOST, endpoint_id: str = str(uuid.UUID(int=7))) -> pb.Endpoint:
    replicas = [pb.Replica(session_id=f"s{port}", address="127.0.0.1", port=port) for port in ports]
    routing = pb.Routing(idle_timeout=Duration(seconds=60), hold_timeout=Duration(seconds=60), hold_limit=1000)
    revision = pb.Revision(number=1, percent=100, queue=100, replicas=replicas)
    return pb.Endpoint(
        id=endpoint_id,
        name="toy",
        project="p",
        hosts=[host],
        revisions=[revision],
        routing=routing,
        access=pb.Access(public=True),
    )


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Router]:
    async with started(tmp_path) as found:
        yield found


@contextlib.asynccontextmanager
async def started(tmp_path: Path, host: str = "127.0.0.1") -> AsyncIterator[Router]:
    """A router that listens at a host only."""
    manager = Manager(Authority())
    await manager.start()
    directory = tmp_path / "router"
    directory.mkdir()
    found = Router(manager, directory, *free_ports()[:2])
    try:
        await found.start("--listen", f"{host}:0", "--clients", f"{host}:{found.clients}")
        yield found
    finally:
        await found.end(signal.SIGKILL)
        for engine in found.engines:
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGKILL)
        await manager.stop()


async def test_tables_are_applied_acknowledged_and_counted(router: Router) -> None:
    async with Backend("a") as backend, router.led() as leader:
        welcome = await leader.hello()
        assert (welcome.router_id, welcome.revision) == ("r1", 0)
        applied = await leader.table(5, toy(backend.port))
        assert (applied.revision, list(applied.refusals)) == (5, [])
        await until_connected(router.clients)
        for _ in range(3):
            assert (await request(router.clients, HOST)).status == 200

        async with asyncio.timeout(NEVER):
            while True:
                traffic = (await leader.next("traffic")).traffic
                if [(found.revision, found.requests) for found in traffic.revisions] == [(1, 3)]:
                    break
        metrics = (await request(router.metrics, "localhost", "/metrics")).body.decode()
        assert 'retinue_endpoint_requests_total{endpoint="toy",project="p",revision="1"} 3.0' in metrics

        bad = toy(backend.port, endpoint_id=str(uuid.UUID(int=8)), host="Not A Host")
        applied = await leader.change(6, bad, toy(host="asleep.test", endpoint_id=str(uuid.UUID(int=9))))
        assert [refusal.endpoint_id for refusal in applied.refusals] == [str(uuid.UUID(int=8))]

        # The first request that is held is reported at once.
        call = asyncio.create_task(request(router.clients, "asleep.test"))
        async with asyncio.timeout(NEVER):
            while not (traffic := (await leader.next("traffic")).traffic).held:
                pass
        assert [(found.endpoint_id, found.count) for found in traffic.held] == [(str(uuid.UUID(int=9)), 1)]
        await leader.change(7, toy(backend.port, host="asleep.test", endpoint_id=str(uuid.UUID(int=9))))
        assert (await call).status == 200


async def test_a_router_with_addresses_of_ipv6_only_is_dialled_and_serves(tmp_path: Path) -> None:
    async with started(tmp_path, "[::1]") as router, Backend("a") as backend, router.led() as leader:
        assert (await leader.hello()).url == f"http://[::1]:{router.clients}"
        assert not (await leader.table(5, toy(backend.port))).refusals

        async def ask() -> int:
            reader, writer = await asyncio.open_connection("::1", router.clients)
            writer.write(f"GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
            answer = await read_answer(reader)
            writer.close()
            return answer.status

        assert await eventually(ask, ignoring=OSError) == 200
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", router.clients)


async def test_a_former_leader_and_another_router_are_refused(router: Router) -> None:
    async with router.led(term=5) as leader:
        await leader.hello()
        await leader.table(1)
        async with router.manager.channel("r1", await _address(router)) as channel:
            stub = pb_grpc.RouterServiceStub(channel)
            for hello, code in (
                (pb.Hello(incarnation=INCARNATION, term=4, router_id="r1"), grpc.StatusCode.FAILED_PRECONDITION),
                (pb.Hello(incarnation=INCARNATION, term=6, router_id="r2"), grpc.StatusCode.PERMISSION_DENIED),
            ):
                call = stub.Sync()
                await call.write(pb.SyncRequest(hello=hello))
                assert await call.code() is code
    key, certificate = router.manager.authority.issue("n1.agent.retinue", "spiffe://retinue/agent/n1")
    async with router.manager.channel("r1", await _address(router), key, certificate) as channel:
        call = pb_grpc.RouterServiceStub(channel).Sync()
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_killed_router_fails_no_request_and_adopts_the_engine(router: Router) -> None:
    async with Backend("a") as one, Backend("b") as two:
        async with router.led() as leader:
            await leader.hello()
            await leader.table(1, toy(one.port))
        await until_connected(router.clients)
        engine = router.engine
        async with Load(router.clients, HOST, clients=4) as load:
            await load.sent_more(20)
            await router.end(signal.SIGKILL)
            await load.sent_more(200)
            await router.start()
            async with router.led(term=2) as leader:
                assert (await leader.hello()).revision == 1
                await leader.table(2, toy(two.port))
                await load.sent_more(100)
        assert load.lost == []
        assert load.by_name["b"] > 50
        assert router.engine == engine


async def test_an_engine_of_another_version_takes_over_without_a_cut(router: Router) -> None:
    async with Backend("a") as one, Backend("b") as two:
        async with router.led() as leader:
            await leader.hello()
            await leader.table(1, toy(one.port))
        await until_connected(router.clients)
        former = router.engine
        stream = asyncio.create_task(request(router.clients, HOST, "/stream?40"))
        reader, writer = await asyncio.open_connection("127.0.0.1", router.clients)
        writer.write(f"GET /ws HTTP/1.1\r\nhost: {HOST}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n".encode())
        assert (await read_answer(reader)).status == 101
        other = router.directory / "other"
        other.symlink_to(program())
        async with Load(router.clients, HOST, clients=4) as load:
            await load.sent_more(20)
            await router.end(signal.SIGTERM)
            await router.start("--envoy", str(other))
            async with router.led(term=2) as leader:
                assert (await leader.hello()).revision == 1
                await eventually(lambda: router.engine != former)
                leaving = toy(two.port)
                leaving.revisions[0].replicas.add(session_id=SESSION, address="127.0.0.1", port=one.port, draining=True)
                await leader.table(2, leaving)
                await load.sent_more(50)
                # What the former engine still does is counted, so that its replica is not stopped.
                async with asyncio.timeout(NEVER):
                    while not any(found.active for found in (await leader.next("traffic")).traffic.draining):
                        pass
        assert load.lost == []
        assert load.by_name["b"] > 20
        # What has begun continues, for as long as it is there.
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        assert (await stream).body.decode().count("data: ") == 40
        os.kill(former, 0)
        writer.close()
        await eventually(lambda: not Path(f"/proc/{former}").exists() or _is_zombie(former))
        # The next router adopts the one that took over, and serves whatever becomes of it.
        latest = router.engine
        await router.end(signal.SIGKILL)
        await router.start("--envoy", str(other))
        async with router.led(term=3) as leader:
            await leader.hello()
            assert (await leader.table(3, toy(one.port))).revision == 3
            assert router.engine == latest
            os.kill(latest, signal.SIGKILL)
            await eventually(lambda: router.engine != latest)
            await until_connected(router.clients)
            assert (await request(router.clients, HOST)).json["name"] == "a"


async def _left_with_a_table(router: Router, backend: Backend) -> int:
    """Ends the router, its engine and its manager once it has a table; returns the engine's process."""
    async with router.led() as leader:
        await leader.hello()
        await leader.table(3, toy(backend.port))
    await router.end(signal.SIGKILL)
    former = router.engine
    os.kill(former, signal.SIGKILL)
    await router.manager.stop()
    return former


async def test_a_router_serves_from_its_disk_without_a_manager(router: Router) -> None:
    async with Backend("a") as backend:
        former = await _left_with_a_table(router, backend)
        await router.start()
        await eventually(lambda: router.engine != former)
        await until_connected(router.clients)
        assert (await request(router.clients, HOST)).status == 200


async def test_a_port_that_another_program_has_is_taken_once_it_is_free(router: Router) -> None:
    async with Backend("a") as backend:
        former = await _left_with_a_table(router, backend)
        address = "127.0.0.1", router.clients
        with await eventually(lambda: socket.create_server(address), ignoring=OSError):
            await router.start()
            await eventually(lambda: router.engine != former)
            log = router.directory.parent / "router.log"
            await eventually(lambda: "refused clients" in log.read_text(errors="replace"))
        await until_connected(router.clients)
        assert (await request(router.clients, HOST)).status == 200


async def test_the_engine_ends_with_the_router_when_it_is_to(router: Router) -> None:
    async with router.led() as leader:
        await leader.hello()
    await router.end(signal.SIGTERM)
    engine = router.engine
    os.kill(engine, 0)
    await router.start("--stop-engine")
    async with router.led() as leader:
        await leader.hello()
    await router.end(signal.SIGTERM)
    await eventually(lambda: not Path(f"/proc/{engine}").exists() or _is_zombie(engine))


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


async def _address(router: Router) -> str:
    """Where the router was announced; it announces itself again when no manager is connected."""
    listening = [
        line for line in (router.directory.parent / "router.log").read_text().splitlines() if "dialled at" in line
    ]
    return listening[-1].rpartition(" ")[2]
