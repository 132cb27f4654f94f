"""System sessions beside their files: several kernels, drains, programs of administrators, quotas,
and what the journal says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import CallError
from retinue.manager.v1 import fleet_service_pb2, idle_pb2, session_pb2
from tests.integration.client.command.inside.sftp_sessions import MARKER, answered, connected, serve
from tests.integration.sessions.idle_policies import let_be_unused, no_policy_afterwards, seconds
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from retinue.client.client import Client
    from retinue.client.sessions import Session
    from retinue.client.words import SessionType
    from retinue.devtools.cluster import Cluster
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOTS = {"cpu": "0.1", "mem": "64m"}
SERVER = ["python3", "-m", "http.server", "--directory", "/usr/share/doc", "8000"]


async def serving(client: Client, shared: Path, name: str, kernels: int = 1) -> Session:
    session = await client.sessions.create(
        type="system",
        name=name,
        cluster_size=kernels,
        mounts=[(str(shared), "/data", True)],
        slots=SLOTS,
    )
    return await session.wait("RUNNING", timeout=NEVER)


async def test_each_kernel_serves(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    session = await serving(client, shared, "two", kernels=2)
    for hostname in ("main1", "sub1"):
        (tmp_path / "commands").write_text(f"put {tmp_path}/commands by-{hostname}\n")
        ran = await files("sftp", "-k", hostname, "two", "-b", str(tmp_path / "commands"))
        assert ran.code == 0, ran.err

        async def logged(hostname: str = hostname) -> str:
            text = b"".join([chunk.data async for chunk in session.logs(hostname)]).decode()
            return text if f'close "/data/by-{hostname}"' in text else ""

        assert "by-" not in (await eventually(logged)).replace(f"by-{hostname}", ""), "each has its own connections"
    ran = await files("sftp", "-k", "sub2", "two", "-b", "/dev/null")
    assert ran.code != 0
    assert "not the name of a kernel" in ran.err
    # Both logins are in the journal, with the kernel that was entered.
    entered = []
    async with aclosing(client.sessions.watch(after_revision=0, session_id=session.id)) as events:
        async for event in events:
            if event.WhichOneof("change") == "kernel_accessed":
                entered.append((event.kernel_accessed.hostname, event.kernel_accessed.method))
            if len(entered) == 5:
                break
    sftp, certificate = session_pb2.ACCESS_METHOD_SFTP, session_pb2.ACCESS_METHOD_SSH_CERTIFICATE
    made = ("main1", certificate)
    assert entered == [made, ("main1", sftp), made, ("sub1", sftp), made]


async def test_drains_end_them_unless_they_are_kept(files: Program, client: Client, shared: Path) -> None:
    session = await serving(client, shared, "drained")
    other = await client.sessions.create(type="interactive", name="stays", slots=SLOTS)
    await other.wait("RUNNING", timeout=NEVER)
    agents = {(await one.refresh()).kernels[0].agent for one in (session, other)}
    try:
        for agent in agents:
            assert (await files("agents", "drain", "--keep-system", agent)).code == 0
        assert session_pb2.SessionState.Name((await session.refresh()).view.state) == "SESSION_STATE_RUNNING"
        for agent in agents:
            assert (await files("agents", "drain", agent)).code == 0
        await session.wait_ended(NEVER)
        assert "who drains agent" in session.view.message
        assert session_pb2.SessionState.Name((await other.refresh()).view.state) == "SESSION_STATE_RUNNING"
    finally:
        for agent in agents:
            assert (await files("agents", "undrain", agent)).code == 0


async def test_an_administrators_program(files: Program, client: Client, shared: Path, owner: str) -> None:
    session = await client.sessions.create(
        type="system",
        name="pages",
        command=SERVER,
        ports=[("web", "http", 8000)],
        mounts=[(str(shared), "/data", False)],
        slots={"cpu": "0.5", "mem": "128m"},
    )
    await session.wait("RUNNING", timeout=NEVER)

    async def answer() -> bytes:
        async with session.open_port("web") as connection:
            await connection.write(b"GET / HTTP/1.0\r\n\r\n")
            return await anext(aiter(connection))

    assert (await eventually(answer, ignoring=CallError)).startswith(b"HTTP/1.0 200")
    for arguments in (("exec", "pages", "--", "id"), ("sftp", "pages"), ("cp", "pages:x", str(shared))):
        ran = await files(*arguments)
        assert ran.code != 0
        assert "a session of type system does not have" in ran.err
    with pytest.raises(CallError, match="no such port"):
        async with session.open_port("sftp"):
            pass
    # For no other user.
    for program in (["--", *SERVER], ["--image", "server"]):
        ran = await files("run", "-d", "--type", "system", "--mount", f"{shared}:/data", *program, RETINUE_TOKEN=owner)
        assert ran.code != 0
        assert "runs nothing of yours" in ran.err


async def test_who_is_at_a_limit_gets_at_results(files: Program, client: Client, shared: Path) -> None:
    me = (await client.users.caller()).name
    await client.quotas.set("user", me, slots={"cpu": "0.1"}, max_sessions=1, max_pending_sessions=1)
    try:
        first = await client.sessions.create(type="interactive", slots=SLOTS)
        await first.wait("RUNNING", timeout=NEVER)
        waiting = await client.sessions.create(type="interactive", slots=SLOTS)
        clients = await serve(client, files, shared, "results")
        ran = await clients.batch("pwd")
        assert ran.code == 0, ran.err
        assert session_pb2.SessionState.Name((await waiting.refresh()).view.state) == "SESSION_STATE_PENDING"
        with pytest.raises(CallError, match="wait already"):
            await client.sessions.create(type="interactive", slots=SLOTS)
    finally:
        await client.quotas.set("user", me)


async def test_idle_is_without_bytes(files: Program, client: Client, cluster: Cluster, shared: Path) -> None:
    """An hour passes in the database only; what is to be done in time has ten minutes, those of the warning."""
    (shared / MARKER).touch()
    async with no_policy_afterwards(client) as group, contextlib.AsyncExitStack() as stack:
        policy = idle_pb2.IdlePolicy(interaction_timeout=seconds(3600), warning=seconds(600))
        await client.resource_groups.update(group, idle_policy=policy)
        sessions, connections = [], []
        for name in ("unused", "used"):
            clients = await serve(client, files, shared, name)
            sessions.append(await client.sessions.get(name))
            connections.append(await stack.enter_async_context(connected(clients)))
        unused, used = sessions
        await asyncio.gather(
            *(pass_time(cluster, session, 3100, lambda found: found.view.conditions) for session in sessions)
        )
        # Both connections are open: what counts is bytes.
        await answered(connections[1])
        await eventually(used.refresh, lambda found: not found.view.conditions)
        await pass_time(cluster, unused, 3700, lambda found: found.is_ended)
        assert unused.view.reason == "IDLE_TIMEOUT"
        assert session_pb2.SessionState.Name((await used.refresh()).view.state) == "SESSION_STATE_RUNNING"


async def pass_time(cluster: Cluster, session: Session, unused: float, wanted: Callable[[Session], object]) -> None:
    """Lets a session be unused for so long, until that shows: what was exchanged before may be noted late."""

    shows = asyncio.create_task(eventually(session.refresh, wanted))
    while not shows.done():
        await let_be_unused(cluster, unused, session, warned=700)
        await asyncio.wait((shows,), timeout=1.0)
    await shows


async def test_mounts_lie_apart(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    """Nothing of one mount gets into another, whatever is written in the first,
    or exchanged for a link at the wrong moment.
    """
    for name in ("one", "two"):
        (shared / name).mkdir()
        (shared / name).chmod(0o777)
    (shared / "secret").write_text("secret")
    (tmp_path / "sent").write_text("sent")
    mounts = [(str(shared / "one"), "/one", True), (str(shared / "two"), "/two", False)]
    session = await client.sessions.create(type="system", name="apart", mounts=mounts, slots=SLOTS)
    await session.wait("RUNNING", timeout=NEVER)
    commands = [
        f"put {tmp_path}/sent /one/sent",
        "-ln /one/sent /two/sent",
        "-rename /one/sent /two/sent",
        f"-put {tmp_path}/sent /two/sent",
        "-symlink ../secret /one/up",
        f"-get /one/up {tmp_path}/stolen",
        f"-symlink {shared}/secret /one/out",
        f"-get /one/out {tmp_path}/stolen",
        "-mkdir /one/../../new",
    ]
    # A path that is a directory now, and a link out of the mount a moment later.
    race = shared / "one" / "race"
    for number in range(60):
        commands += [f"-get /one/race/secret {tmp_path}/stolen{number}", f"-put {tmp_path}/sent /one/race/written"]
        commands += ["-rename /one/sent /one/race/moved", "-rename /one/race/moved /one/sent"]
    (tmp_path / "commands").write_text("".join(f"{command}\n" for command in commands))
    running = asyncio.create_task(files("sftp", "apart", "-b", str(tmp_path / "commands")))

    def exchange() -> None:
        race.mkdir()
        (race / "secret").write_text("own")
        race.rename(race.with_name("aside"))
        race.symlink_to(shared)
        race.unlink()
        race.with_name("aside").rename(race)
        while race.exists():
            # The other side may write into it meanwhile.
            shutil.rmtree(race, ignore_errors=True)

    while not running.done():
        await asyncio.to_thread(exchange)
    ran = await running
    assert ran.code == 0, ran.err
    stolen = await asyncio.to_thread(lambda: [found.read_text() for found in tmp_path.glob("stolen*")])
    assert set(stolen) <= {"own", ""}
    assert list((shared / "two").iterdir()) == []
    assert set(await asyncio.to_thread(os.listdir, shared)) == {"one", "two", "secret"}


@pytest.mark.parametrize(
    ("kind", "kernels"), [("interactive", 1), ("batch", 1), ("system", 1), ("inference", 1), ("interactive", 2)]
)
async def test_directories_of_users_and_projects(client: Client, shared: Path, kind: SessionType, kernels: int) -> None:
    caller = await client.users.caller()
    own = shared / caller.name / "default"
    own.mkdir(parents=True)
    own.chmod(0o777)
    roots = [fleet_service_pb2.MountRoot(path=f"{shared}/{{user}}/{{project}}", writable=True)]
    await client.resource_groups.update("default", mount_roots=roots)
    command = ["sh", "-c", "touch /data/$(hostname) && sleep 600"] if kind != "system" else []
    source = f"{shared}/{{user}}/{{project}}"
    session = await client.sessions.create(
        type=kind,
        cluster_size=kernels,
        project="default",
        command=command,
        mounts=[(source, "/data", True)],
        slots=SLOTS,
    )
    await session.wait("RUNNING", timeout=NEVER)
    assert session.view.spec.mounts[0].source == str(own)
    if command:
        hostnames = {f"sub{number}" for number in range(1, kernels)} | {"main1"}
        for hostname in hostnames - {"main1"}:
            async with session.attach(["touch", f"/data/{hostname}"], hostname) as attachment:
                async for _ in attachment:
                    pass
        await eventually(lambda: asyncio.to_thread(lambda: {path.name for path in own.iterdir()} == hostnames))
    for other in (f"{shared}/{caller.name}/other", f"{shared}/other/default", f"{shared}/{{user}}"):
        with pytest.raises(CallError, match="no root"):
            await client.sessions.create(
                type=kind, project="default", command=["true"] if command else [], mounts=[(other, "/data", False)]
            )
