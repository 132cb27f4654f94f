"""The manager as a process: ready, found again after a kill, gone in time, and usable from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from retinue.devtools.cluster import free_ports
from retinue.manager.identity.tokens import hash_secret
from retinue.manager.store.accounts import accounts
from retinue.manager.store.postgres.database import Database
from retinue.manager.store.postgres.embedded import EmbeddedServer, running_server
from retinue.manager.v1 import (
    account_service_pb2,
    account_service_pb2_grpc,
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from tests.integration.manager.manager_commands import command, refusals
from tests.integration.manager.rig import bearer, taken_apart
from tests.support.databases import Postgres, fresh_database, passable_directory
from tests.support.eventually import NEVER, eventually, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def directory() -> Iterator[Path]:
    with passable_directory() as made:
        yield made / "manager"
        # A manager that was killed leaves its database running.
        left = running_server(made / "manager" / "postgres")
        if left is not None:
            os.kill(left, signal.SIGQUIT)
            eventually_blocking(lambda: running_server(made / "manager" / "postgres") is None)


class Manager:
    """A process, and what it said of itself."""

    def __init__(
        self, process: asyncio.subprocess.Process, directory: Path, options: tuple[str, ...], lines: list[str]
    ) -> None:
        self.process = process
        self.directory = directory
        self.options = options
        self.lines = lines
        """Its log; whole after the block in which it ran."""

    @property
    def said(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.directory / "dev.json").read_text())
        return found

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return bearer(self.said["token"])

    def channel(self) -> grpc.aio.Channel:
        said = self.said
        credentials = grpc.ssl_channel_credentials(said["ca"].encode())
        return grpc.aio.secure_channel(said["endpoint"], credentials, (("grpc.use_local_subchannel_pool", 1),))

    async def ended(self) -> int:
        async with asyncio.timeout(NEVER):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def manager(directory: Path, *options: str, ready: bool = True, **environment: str) -> AsyncIterator[Manager]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "retinue.manager.main", "serve", "--data-dir", str(directory)),
        *("--listen", "127.0.0.1:0", "--agent-listen", "127.0.0.1:0", *options),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert process.stderr is not None
    lines: list[str] = []

    async def drain(stream: asyncio.StreamReader, started: asyncio.Event) -> None:
        async for line in stream:
            lines.append(line.decode())
            if b"ready: users at" in line:
                started.set()
        started.set()

    started = asyncio.Event()
    draining = asyncio.create_task(drain(process.stderr, started))
    try:
        if ready:
            async with asyncio.timeout(NEVER):
                await started.wait()
            assert process.returncode is None, "".join(lines)
        yield Manager(process, directory, options, lines)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(NEVER):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await draining
        assert "Traceback" not in "".join(lines), "".join(lines)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving() -> AsyncIterator[Manager]:
    """One in development mode, for tests that it outlives."""
    with passable_directory() as made:
        metrics = f"127.0.0.1:{free_ports()[0]}"
        async with manager(made / "manager", "--dev", "--metrics", metrics) as running:
            yield running


async def to_the_end(stream: Any) -> None:
    """Reads what a stream still has, up to the error it ends with."""
    while True:
        await stream.read()


async def caller(running: Manager) -> str:
    async with running.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        answer = await stub.GetCaller(account_service_pb2.GetCallerRequest(), metadata=running.metadata)
    return str(answer.user.name)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_development_mode_and_a_stop_with_streams_open(directory: Path) -> None:
    async with manager(directory, "--dev", "--listen", "127.0.0.1:0,127.0.0.2:0") as running:
        host, port = running.said["endpoint"].split(":")
        assert host == "127.0.0.1"
        # The same port everywhere.
        _, connection = await asyncio.open_connection("127.0.0.2", int(port))
        connection.close()
        assert mode(directory / "dev.json") == 0o600
        assert mode(directory / "ca.key") == 0o600
        assert mode(directory) == 0o711
        assert set(running.said) == {
            "endpoint",
            "agent_endpoint",
            "ca",
            "token",
            "join_token",
            "ca_fingerprint",
            "router_join_token",
        }
        assert await caller(running) == "admin"
        asked = ("health", "--data-dir", str(directory), "--listen", running.said["endpoint"])
        assert await command(*asked) == (0, f"ready: {running.said['endpoint']}\n", "")
        async with running.channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
            watching: Any = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watching.read()).status == SERVING
            sessions = session_service_pb2_grpc.SessionServiceStub(channel)
            watch = sessions.WatchSessions(session_service_pb2.WatchSessionsRequest(), metadata=running.metadata)
            await watch.read()
            running.process.send_signal(signal.SIGTERM)
            for stream in (watch, watching):
                # Neither would ever end by itself.
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await to_the_end(stream)
                ended = taken_apart(caught.value)
                assert (ended.code, ended.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
            assert await running.ended() == 0
        assert running_server(directory / "postgres") is None


async def test_a_killed_manager_leaves_everything_to_the_next(directory: Path) -> None:
    async with manager(directory, "--dev") as running:
        before = running.said
        async with running.channel() as channel:
            stub = account_service_pb2_grpc.AccountServiceStub(channel)
            request = account_service_pb2.CreateProjectRequest(project=account_service_pb2.Project(name="kept"))
            await stub.CreateProject(request, metadata=running.metadata)
        database = running_server(directory / "postgres")
        running.process.kill()
        await running.ended()
    assert database is not None
    assert running_server(directory / "postgres") == database
    async with manager(directory, "--dev") as running:
        assert running_server(directory / "postgres") == database
        after = running.said
        for kept in ("ca", "token", "join_token", "ca_fingerprint"):
            assert after[kept] == before[kept]
        async with running.channel() as channel:
            stub = account_service_pb2_grpc.AccountServiceStub(channel)
            listed = await stub.ListProjects(account_service_pb2.ListProjectsRequest(), metadata=running.metadata)
            assert [project.name for project in listed.projects] == ["default", "kept"]


async def test_a_second_manager_on_one_directory(serving: Manager) -> None:
    async with manager(serving.directory, "--dev", ready=False) as second:
        assert await second.ended() == 1
        assert await caller(serving) == "admin"


async def test_a_port_that_is_taken(serving: Manager) -> None:
    with passable_directory() as other:
        taken = serving.said["endpoint"]
        async with manager(other / "m", "--listen", taken, ready=False) as second:
            assert await second.ended() == 1
        assert f"Error: cannot listen at {taken}: Address already in use\n" in second.lines
        assert running_server(other / "m" / "postgres") is None


async def test_the_loss_of_the_database_is_survived(serving: Manager) -> None:
    place = serving.directory / "postgres"
    database = running_server(place)
    assert database is not None
    os.kill(database, signal.SIGKILL)
    async with serving.channel() as channel:
        stub = fleet_service_pb2_grpc.FleetServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)

        async def answers() -> bool:
            try:
                await stub.ListAgents(fleet_service_pb2.ListAgentsRequest(), metadata=serving.metadata)
            except grpc.aio.AioRpcError as error:
                # From the manager with its details, or from the connection without any: both say to try again.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
            return running_server(place) not in (None, database)

        async def healthy() -> bool:
            return bool((await health.Check(health_pb2.HealthCheckRequest())).status == SERVING)

        await eventually(answers)
        await eventually(healthy)


async def test_two_replicas_on_one_server_of_ones_own(postgres: Postgres, directory: Path) -> None:
    async with fresh_database(postgres) as url:
        with passable_directory() as other:
            key = other / "seal"
            key.write_text("0" * 64)
            shared = {"RETINUE_MANAGER_DATABASE_URL": url, "RETINUE_MANAGER_CA_SEAL_KEY_FILE": str(key)}
            async with manager(directory, "--dev", ready=True, **shared) as first:
                async with manager(other / "without", RETINUE_MANAGER_DATABASE_URL=url, ready=False) as refused:
                    assert await refused.ended() == 1
                await with_a_second(other / "m", directory, first, shared)


async def with_a_second(place: Path, directory: Path, first: Manager, shared: dict[str, str]) -> None:
    async with manager(place, "--dev", "--log-format", "json", ready=True, **shared) as second:
        assert second.said["ca_fingerprint"] == first.said["ca_fingerprint"]
        assert not (directory / "postgres").exists()
        async with first.channel() as there, second.channel() as here:
            request = account_service_pb2.CreateProjectRequest(project=account_service_pb2.Project(name="p"))
            await account_service_pb2_grpc.AccountServiceStub(there).CreateProject(request, metadata=first.metadata)
            # The second one's file was written by itself, over accounts that were there already.
            listed = await account_service_pb2_grpc.AccountServiceStub(here).ListProjects(
                account_service_pb2.ListProjectsRequest(), metadata=second.metadata
            )
            assert [project.name for project in listed.projects] == ["default", "p"]
        await asyncio.to_thread(call_by_another_name, second.said["endpoint"])
        taken = ("--listen", first.said["endpoint"])
        async with manager(place.parent / "third", *taken, "--log-format", "json", ready=False, **shared) as refused:
            assert await refused.ended() == 1
    said = [[json.loads(line)["message"] for line in log.lines] for log in (second, refused)]
    assert any(message.startswith("ready: users at") for message in said[0])
    assert any("Address already in use" in message for message in said[1])


def call_by_another_name(endpoint: str) -> None:
    """Calls a manager by a name that is not its own, and as one that speaks without TLS."""
    host, port = endpoint.split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port))) as connection:
        context.wrap_socket(connection, server_hostname="other.example.org").close()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        # Until it is refused.
        while connection.recv(1024):
            pass


async def bearer_of(directory: Path, token: str) -> tuple[str, str] | None:
    """Whose a token is, and the role, by the database of a manager that does not run."""
    server = EmbeddedServer(directory / "postgres")
    database = Database(await server.start())
    try:
        async with database.transaction() as tx:
            found = await accounts.find_bearer(tx, hash_secret(token))
            user = None if found is None else await accounts.get_user(tx, found.user)
        return None if user is None else (user.name, user.role)
    finally:
        await database.dispose()
        await server.stop()


async def test_administrators_are_made_on_the_machine(directory: Path) -> None:
    async with manager(directory, "--dev") as running:
        code, output, errors = await command("create-admin", "root", "--data-dir", str(directory))
        assert code == 0, errors
        async with running.channel() as channel:
            stub = account_service_pb2_grpc.AccountServiceStub(channel)
            answer = await stub.GetCaller(
                account_service_pb2.GetCallerRequest(), metadata=bearer(output.removesuffix("\n"))
            )
            assert (answer.user.name, answer.user.role) == ("root", account_service_pb2.USER_ROLE_ADMIN)
            request = account_service_pb2.ListAuditRecordsRequest(filter='object = "root"')
            (record,) = (await stub.ListAuditRecords(request, metadata=running.metadata)).records
            assert (record.method, record.code) == ("retinue-manager create-admin", "OK")
    # Without a manager: the database is there for as long as the command.
    code, second, errors = await command("create-admin", "root", "--data-dir", str(directory))
    assert code == 0, errors
    assert running_server(directory / "postgres") is None
    assert second != output
    for token in (output, second):
        assert await bearer_of(directory, token.removesuffix("\n")) == ("root", "ADMIN")
    (revoked,) = await refusals(("revoke-agent", "n1", "--data-dir", str(directory)))
    assert revoked[0] == 1
    assert "no agent n1" in revoked[1]


@pytest.mark.attack("acts-without-a-trace")
async def test_an_act_whose_manager_was_killed_has_a_record(directory: Path, tmp_path: Path) -> None:
    """It took effect, and its outcome was not written yet."""
    armed = tmp_path / "armed"
    armed.mkdir()
    request = account_service_pb2.CreateProjectRequest(project=account_service_pb2.Project(name="vision"))
    records = account_service_pb2.ListAuditRecordsRequest(filter='method = "CreateProject"')
    async with manager(directory, "--dev", "--failpoints", str(tmp_path)) as running:
        (armed / "store.execute@manager.store.accounts.audit.end=kill").touch()
        async with running.channel() as channel:
            stub = account_service_pb2_grpc.AccountServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.CreateProject(request, metadata=running.metadata)
        assert await running.ended() == -signal.SIGKILL
    async with manager(directory, "--dev") as running, running.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        listed = await stub.ListProjects(account_service_pb2.ListProjectsRequest(), metadata=running.metadata)
        assert "vision" in [project.name for project in listed.projects]
        (record,) = (await stub.ListAuditRecords(records, metadata=running.metadata)).records
        assert (record.object, record.code, record.HasField("end_time")) == ("vision", "", False)
        # Denied calls that a manager has counted are written when it stops.
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetCaller(account_service_pb2.GetCallerRequest())
    async with manager(directory, "--dev") as running, running.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        denials = account_service_pb2.ListAuditRecordsRequest(filter='category = "DENIAL"')
        (denial,) = (await stub.ListAuditRecords(denials, metadata=running.metadata)).records
        assert (denial.reason, denial.count) == ("CREDENTIALS_MISSING", 1)


async def test_a_check_says_what_a_start_would_find_in_the_database(postgres: Postgres, directory: Path) -> None:
    asked = ("config", "check", "--connect", "--data-dir", str(directory), "--database-url")
    async with fresh_database(postgres) as url:
        code, output, errors = await command(*asked, url)
        assert code == 0, errors
        assert ": PostgreSQL 18." in output
        assert "# it holds a cluster, with the schema of this program" in output
        code, output, errors = await command(*asked, url.partition("?")[0] + "_not?" + url.partition("?")[2])
        assert code == 1
        assert "does not exist: check the name in the database URL, or CREATE DATABASE" in errors
    code, output, errors = await command(*asked, postgres.url_of("postgres"))
    assert code == 0, errors
    assert "# it is empty: `serve` makes a cluster in it" in output
    assert not (directory / "cluster").exists()


async def test_bad_options(directory: Path) -> None:
    bad = [("--heartbeat", "0"), ("--suspect-after", "1"), ("--lost-after", "x"), ("--database-url", "mysql://x/y")]
    refused = await refusals(
        *(("serve", "--data-dir", str(directory), *options) for options in bad),
        *(("create-admin", "--data-dir", str(directory), "--", name) for name in ("-x", "", "A")),
    )
    assert [code in (1, 2) for code, _ in refused[: len(bad)]] == [True] * len(bad)
    assert [code for code, _ in refused[len(bad) :]] == [2, 2, 2]
    assert not (directory / "postgres").exists()


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=NEVER) as answer:
        read: str = answer.read().decode()
    return read


async def test_calls_and_the_lead_are_shown_to_prometheus(serving: Manager) -> None:
    port = int(serving.options[serving.options.index("--metrics") + 1].rpartition(":")[2])
    calls = 'retinue_manager_calls_total{code="OK",method="retinue.manager.v1.AccountService/GetCaller"} '

    def counted(found: str) -> float:
        return sum(float(line.removeprefix(calls)) for line in found.splitlines() if line.startswith(calls))

    before = counted(await asyncio.to_thread(_metrics, port))
    await caller(serving)
    await eventually(lambda: asyncio.to_thread(_metrics, port), lambda found: counted(found) > before)
    await eventually(lambda: asyncio.to_thread(_metrics, port), lambda found: "retinue_manager_leader 1.0" in found)
