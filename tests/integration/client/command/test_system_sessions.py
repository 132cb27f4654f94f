"""System sessions beside their files: several kernels, drains, programs of administrators, quotas,
and what the journal says.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import shutil
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from google.protobuf.duration_pb2 import Duration

from retinue.client.errors import CallError
from retinue.manager.v1 import fleet_service_pb2, idle_pb2, session_pb2
from tests.integration.client.command.conftest import SECONDS, Program
from tests.integration.client.command.sftp_sessions import serve
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.client import Client
    from retinue.client.session import Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOTS = {"cpu": "0.1", "mem": "64m"}
MARKER = "is-here"
SERVER = ["python3", "-m", "http.server", "--directory", "/usr/share/doc", "8000"]


async def serving(client: Client, shared: Path, name: str, kernels: int = 1) -> Session:
    session = await client.sessions.create(
        type="system",
        name=name,
        cluster_size=kernels,
        mounts=[(str(shared), "/data", True)],
        slots=SLOTS,
    )
    return await session.wait("RUNNING", timeout=SECONDS)


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
    await other.wait("RUNNING", timeout=SECONDS)
    agents = {(await one.refresh()).kernels[0].agent for one in (session, other)}
    try:
        for agent in agents:
            assert (await files("agents", "drain", "--keep-system", agent)).code == 0
        assert session_pb2.SessionState.Name((await session.refresh()).view.state) == "SESSION_STATE_RUNNING"
        for agent in agents:
            assert (await files("agents", "drain", agent)).code == 0
        await session.wait_ended(SECONDS)
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
    await session.wait("RUNNING", timeout=SECONDS)

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
        await first.wait("RUNNING", timeout=SECONDS)
        waiting = await client.sessions.create(type="interactive", slots=SLOTS)
        clients = await serve(client, files, shared, "results")
        ran = await clients.batch("pwd")
        assert ran.code == 0, ran.err
        assert session_pb2.SessionState.Name((await waiting.refresh()).view.state) == "SESSION_STATE_PENDING"
        with pytest.raises(CallError, match="wait already"):
            await client.sessions.create(type="interactive", slots=SLOTS)
    finally:
        await client.quotas.set("user", me)


async def test_idle_is_without_bytes(files: Program, client: Client, shared: Path) -> None:
    policy = idle_pb2.IdlePolicy(interaction_timeout=seconds(8), warning=seconds(1), max_extension=seconds(60))
    unused = await serving(client, shared, "unused")
    clients = await serve(client, files, shared, "used")
    used = await client.sessions.get("used")
    (shared / MARKER).touch()
    process = await clients.start("sftp", clients.host)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await client.resource_groups.update("default", idle_policy=policy)
        ending = asyncio.create_task(unused.wait_ended(SECONDS))
        while not ending.done():
            process.stdin.write(b"ls -1\n")
            while MARKER.encode() not in await asyncio.wait_for(process.stdout.readline(), SECONDS):
                assert process.returncode is None
            await asyncio.wait({ending}, timeout=0.2)
        await ending
        assert unused.view.reason == "IDLE_TIMEOUT"
        assert session_pb2.SessionState.Name((await used.refresh()).view.state) == "SESSION_STATE_RUNNING"
    finally:
        await client.resource_groups.update("default", idle_policy=idle_pb2.IdlePolicy())
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def seconds(number: float) -> Duration:
    """A length of time, as messages have it."""
    duration = Duration()
    duration.FromTimedelta(dt.timedelta(seconds=number))
    return duration


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
    await session.wait("RUNNING", timeout=SECONDS)
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
async def test_directories_of_users_and_projects(client: Client, shared: Path, kind: str, kernels: int) -> None:
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
    await session.wait("RUNNING", timeout=SECONDS)
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
