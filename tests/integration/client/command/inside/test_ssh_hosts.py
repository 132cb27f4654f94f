"""Each kernel of a session is a host of OpenSSH's clients, and of what is built on them."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.integration.client.command.inside.sftp_sessions import Clients
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def session(client: Client) -> AsyncIterator[Session]:
    # No node has room for both.
    session = await client.sessions.create(
        type="interactive",
        name="hosts",
        cluster_size=2,
        cluster_mode="multi-node",
        slots={"cpu": "3", "mem": "512m"},
        environment={"PATH": "/home/work/bin:/usr/local/bin:/usr/bin:/bin", "SAID": "yes"},
    )
    await session.wait("RUNNING", timeout=NEVER)
    yield session


async def configured(files: Program, directory: Path, name: str) -> Clients:
    """OpenSSH's clients with the configuration that is printed for a session."""
    ran = await files("ssh-config", name)
    assert ran.code == 0, ran.err
    (directory / "config").write_text(ran.out)
    return Clients(files, directory / "config", f"{name}.retinue")


async def test_clients_reach_each_kernel(files: Program, session: Session, tmp_path: Path) -> None:
    clients = await configured(files, tmp_path, session.name)
    sub = f"sub1.{clients.host}"
    for host, hostname in ((clients.host, "main1"), (f"main1.{clients.host}", "main1"), (sub, "sub1")):
        ran = await clients("ssh", host, "hostname; echo $SAID; exit 7")
        assert (ran.code, ran.out) == (7, f"{hostname}\nyes\n"), ran.err
    # As on the login node of a computing centre.
    ran = await clients("ssh", "-J", clients.host, sub, "hostname; cat >got; wc -c <got", text="text")
    assert (ran.code, ran.out.split()) == (0, ["sub1", "4"]), ran.err
    (tmp_path / "sent").write_bytes(content := os.urandom(1 << 20))
    ran = await clients("scp", str(tmp_path / "sent"), f"{sub}:copied")
    assert ran.code == 0, ran.err
    ran = await clients("sftp", "-b", "-", sub, text=f"get copied {tmp_path}/back\nput {tmp_path}/back put\n")
    assert (ran.code, (tmp_path / "back").read_bytes() == content) == (0, True), ran.err
    command = ("rsync", "-a", "-e", f"ssh -F {clients.config}", f"{tmp_path}/sent", f"{sub}:synced")
    process = await asyncio.create_subprocess_exec(*command, env=files.environment)
    async with asyncio.timeout(NEVER):
        assert await process.wait() == 0
    ran = await files(
        "exec", "-k", "sub1", session.name, "--", "sh", "-c", "md5sum <copied; md5sum <put; md5sum <synced"
    )
    first, *others = ran.out.splitlines()
    assert others == [first, first]
    ran = await files("ssh", "-k", "sub1", session.name, "hostname")
    assert (ran.code, ran.out) == (0, "sub1\n"), ran.err


async def test_a_login_finds_what_the_command_finds(files: Program, session: Session, tmp_path: Path) -> None:
    """/etc/profile replaces the search path, in shells of a login only."""
    clients = await configured(files, tmp_path, session.name)
    program = "mkdir bin && printf '#!/bin/sh\necho own' >bin/own-program && chmod +x bin/own-program"
    for kernel, host in (("main1", clients.host), ("sub1", f"sub1.{clients.host}")):
        assert (await files("exec", "-k", kernel, session.name, "--", "sh", "-c", program)).code == 0
        for ran in (
            await clients("ssh", host, "own-program"),
            await clients("ssh", "-T", host, text="own-program\n"),
            await clients("ssh", "-tt", host, text="own-program; exit\n"),
            await clients("ssh", clients.host, f"ssh {kernel} own-program"),
            await clients("ssh", clients.host, f"echo own-program | ssh -T {kernel}"),
        ):
            assert "own" in ran.out.split(), (ran.out, ran.err)


async def test_mpi_starts_from_a_login(files: Program, session: Session, tmp_path: Path) -> None:
    clients = await configured(files, tmp_path, session.name)
    mpirun = "mpirun --host main1,sub1 sh -c 'echo $OMPI_COMM_WORLD_RANK $(hostname) $SAID'"
    for ran in (
        await clients("ssh", clients.host, mpirun),
        # A shell of a login: it reads /etc/profile.
        await clients("ssh", "-T", clients.host, text=f"{mpirun}\n"),
        await clients("ssh", "-tt", clients.host, text=f"{mpirun}; exit\n"),
    ):
        assert ran.code == 0, (ran.out, ran.err)
        ranks = [line.strip() for line in ran.out.splitlines() if line.strip() in {"0 main1 yes", "1 sub1 yes"}]
        assert sorted(ranks) == ["0 main1 yes", "1 sub1 yes"], ran.out


@pytest.mark.parametrize("answer", ["work\n/\n    ProxyCommand touch /tmp/x", "-oProxyCommand=x", "work %h", ""])
async def test_a_kernel_writes_no_configuration(files: Program, session: Session, answer: str) -> None:
    """What it says of its user is its own affair, and an image may say anything."""
    program = "mkdir bin; printf '%s\n' \"$ANSWER\" >answer; printf '#!/bin/sh\ncat ~/answer' >bin/id; chmod +x bin/id"
    assert (await files("exec", "-e", f"ANSWER={answer}", session.name, "--", "sh", "-c", program)).code == 0
    ran = await files("ssh-config", session.name)
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be prepared for ssh" in ran.err


async def test_each_kernel_of_a_system_session_serves_its_node(
    files: Program, client: Client, shared: Path, tmp_path: Path
) -> None:
    served = await client.sessions.create(
        type="system",
        name="served",
        cluster_size=2,
        mounts=[(str(shared), "/data", True)],
        slots={"cpu": "0.5", "mem": "256m"},
    )
    await served.wait("RUNNING", timeout=NEVER)
    clients = await configured(files, tmp_path, served.name)
    (tmp_path / "sent").write_text("text")
    for number, host in enumerate((clients.host, f"main1.{clients.host}", f"sub1.{clients.host}")):
        ran = await clients("scp", str(tmp_path / "sent"), f"{host}:{number}")
        assert ran.code == 0, ran.err
    assert sorted(os.listdir(shared)) == ["0", "1", "2"]


async def test_hosts_are_written_once(files: Program, session: Session, tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        ran = await files("ssh-config", "--write", session.name)
        assert (ran.code, ran.out) == (0, "")
        assert ran.err.startswith("hosts.retinue, sub1.hosts.retinue are in ")
        written.append((tmp_path / ".ssh" / "config").read_text())
    assert written[0] == written[1]
    (included,) = [line.removeprefix("Include ") for line in written[0].splitlines()]
    process = await asyncio.create_subprocess_exec(
        *("ssh", "-F", included, "sub1.hosts.retinue", "hostname"),
        env=files.environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(NEVER):
        out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"sub1\n")
