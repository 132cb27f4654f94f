"""The embedded server: out of the reach of other users, durable, taken over, started again,
and put where it can run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from retinue.manager.installation import prepare_directory
from retinue.manager.store.postgres import embedded
from retinue.manager.store.postgres.embedded import FALLBACK_ROOT, EmbeddedServer, EmbeddedServerError, running_server
from tests.support.databases import passable_directory
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory() -> Iterator[Path]:
    with passable_directory() as made:
        yield made


async def ask(url: str, question: str) -> object:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        answer = await connection.execute(question.encode())
        row = await answer.fetchone() if answer.description else None
        return row[0] if row is not None else None


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_no_other_user_can_connect(directory: Path) -> None:
    server = EmbeddedServer(directory / "postgres")
    before = mode(directory)
    try:
        url = await server.start()
        owner = os.stat(server.directory).st_uid
        assert mode(server.directory) == 0o700
        assert owner not in (0, 65534)
        assert mode(directory) == before
        assert os.stat(f"/proc/{server.pid}").st_uid == owner
        assert await ask(url, "SHOW listen_addresses") == ""
        for durable in ("fsync", "full_page_writes", "synchronous_commit"):
            assert await ask(url, f"SHOW {durable}") == "on"
        # A stranger on the same machine is refused by the directory before PostgreSQL is asked.
        stranger = await asyncio.create_subprocess_exec(
            "/bin/ls",
            str(server.directory),
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            stderr=asyncio.subprocess.PIPE,
        )
        _, message = await stranger.communicate()
        assert b"Permission denied" in message
    finally:
        await server.stop()
    assert running_server(directory / "postgres") is None


async def test_a_server_left_by_a_killed_manager_is_taken_over(directory: Path) -> None:
    program = (
        "import asyncio, os, signal, sys; from pathlib import Path; from retinue.manager.store.postgres.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    server = EmbeddedServer(Path(sys.argv[1]), durable=False); await server.start(); print(server.pid)\n"
        "    sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    place = directory / "postgres"
    manager = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(place), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await manager.communicate()
    left = int(output)
    server = EmbeddedServer(place, durable=False)
    try:
        assert manager.returncode == -signal.SIGKILL
        url = await server.start()
        assert server.pid == left
        assert not server.started_here
        assert await ask(url, "SELECT 1") == 1
    finally:
        await server.stop()
    assert running_server(place) is None


async def test_a_start_waits_for_a_server_that_ended_and_that_its_parent_has_not_noticed(directory: Path) -> None:
    program = (
        "import asyncio, os, signal, sys; from pathlib import Path; from retinue.manager.store.postgres.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    server = EmbeddedServer(Path(sys.argv[1]), durable=False); await server.start(); print(server.pid)\n"
        "    sys.stdout.flush(); os.kill(os.getpid(), signal.SIGSTOP); await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    place = directory / "postgres"
    manager = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(place), stdout=asyncio.subprocess.PIPE
    )
    server = EmbeddedServer(place, durable=False)
    starting: asyncio.Task[str] | None = None
    try:
        assert manager.stdout is not None
        left = int(await manager.stdout.readline())
        await eventually(lambda: _state(manager.pid) == "T")
        os.kill(left, signal.SIGKILL)
        await eventually(lambda: _state(left) == "Z")
        starting = asyncio.create_task(server.start())
        # Long enough for a start that does not wait to fail.
        done, _ = await asyncio.wait([starting], timeout=2.0)
        assert not done
        os.kill(manager.pid, signal.SIGCONT)
        assert await ask(await starting, "SELECT 1") == 1
        assert server.started_here
    finally:
        manager.kill()
        await manager.wait()
        if starting is not None:
            await asyncio.wait([starting])
        await server.stop()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]


async def test_data_is_there_after_a_kill_and_the_server_comes_back(directory: Path) -> None:
    server = EmbeddedServer(directory / "postgres")
    url = await server.start()
    supervising = asyncio.create_task(server.keep())
    try:
        first = server.pid
        assert first is not None
        await ask(url, "SELECT 42 AS n INTO t")
        os.kill(first, signal.SIGKILL)

        async def back() -> bool:
            try:
                return await ask(url, "SELECT n FROM t") == 42
            except psycopg.OperationalError:
                return False

        await eventually(back)
        assert server.pid != first
    finally:
        supervising.cancel()
        await asyncio.wait((supervising,))
        await server.stop()


async def test_a_place_that_cannot_be_reached_is_replaced(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    private = directory / "private"
    private.mkdir(mode=0o700)
    server = EmbeddedServer(private / "postgres", durable=False)
    try:
        await server.start()
        assert server.directory.parent == FALLBACK_ROOT
        assert str(server.directory) in caplog.text
        assert mode(private) == 0o700
        again = EmbeddedServer(private / "postgres", durable=False)
        await again.start()
        assert (again.pid, again.directory) == (server.pid, server.directory)
    finally:
        await server.stop()
        shutil.rmtree(server.directory)


async def test_binaries_in_a_private_directory_are_copied_with_their_libraries(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = embedded._installed()  # noqa: SLF001  # where the wheel is
    private = directory / "private"
    private.mkdir(mode=0o700)
    for part in (installed, installed.with_name(f"{installed.name}.libs")):
        shutil.copytree(part, private / part.name, symlinks=True, ignore=shutil.ignore_patterns("pginstall", "include"))
    monkeypatch.setattr(embedded, "_installed", lambda: private / installed.name)
    server = EmbeddedServer(directory / "postgres", durable=False)
    url = await server.start()
    # Others make copies, too.
    copy = FALLBACK_ROOT / Path(os.readlink(f"/proc/{server.pid}/exe")).relative_to(FALLBACK_ROOT).parts[0]
    try:
        assert copy.name.startswith("postgresql-")
        assert await ask(url, "SELECT 1") == 1
    finally:
        await server.stop()
        shutil.rmtree(copy)


async def test_a_name_too_long_for_a_socket_is_replaced(directory: Path) -> None:
    server = EmbeddedServer(directory / ("x" * 100), durable=False)
    try:
        await server.start()
        assert server.directory.parent == FALLBACK_ROOT
    finally:
        await server.stop()
        shutil.rmtree(server.directory)


async def test_an_unfinished_cluster_is_made_again(directory: Path) -> None:
    (directory / "postgres.unfinished").mkdir()
    (directory / "postgres.unfinished" / "PG_VERSION").write_text("18\n")
    server = EmbeddedServer(directory / "postgres", durable=False)
    try:
        assert await ask(await server.start(), "SELECT 1") == 1
        assert not (directory / "postgres.unfinished").exists()
    finally:
        await server.stop()


async def test_a_cluster_of_another_version_is_refused(directory: Path) -> None:
    (directory / "postgres").mkdir()
    (directory / "postgres" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedServerError, match="PostgreSQL 12"):
        await EmbeddedServer(directory / "postgres").start()


async def test_a_server_that_cannot_start_says_where_to_look(directory: Path) -> None:
    server = EmbeddedServer(directory / "postgres", durable=False, settings={"shared_buffers": "nonsense"})
    try:
        with pytest.raises(EmbeddedServerError, match=r"server\.log"):
            await server.start()
    finally:
        await server.stop()


def test_a_stale_pid_file_is_not_a_server(directory: Path) -> None:
    (directory / "postmaster.pid").write_text(f"{os.getpid()}\n")
    assert running_server(directory) is None
    (directory / "postmaster.pid").write_text("nonsense")
    assert running_server(directory) is None


async def test_the_data_stays_in_its_place_whatever_the_umask_is(directory: Path) -> None:
    place = directory / "deep" / "manager"
    server = EmbeddedServer(place / "postgres", durable=False)
    before = os.umask(0o077)
    try:
        prepare_directory(place)
        await server.start()
        assert server.directory == place / "postgres"
        assert [mode(made) for made in (place.parent, place, server.directory)] == [0o711, 0o711, 0o700]
    finally:
        os.umask(before)
        await server.stop()
