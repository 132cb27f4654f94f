"""What bounds a system session, and what its log says: connections, files, disks, certificates,
and names of any kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
import subprocess
import time
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import CallError
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.service_ports import sftp_connections
from retinue.manager.domain.session.ssh_authority import SshAuthority
from retinue.manager.domain.session.ssh_keys import parse_public_key
from retinue.manager.identity.authority import Authority
from retinue.manager.v1 import session_pb2 as pb
from tests.integration.client.command.inside.sftp_sessions import logged, serve
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.client.client import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster
    from tests.integration.client.command.conftest import Program
    from tests.support.forked_programs import Outcome

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
TERABYTE = 1 << 40
FILES = 64


async def ended(client: Client, name: str) -> None:
    """Ends a session."""
    session = await client.sessions.get(name)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_files_are_logged_and_bounded(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "logged", max_file_bytes=MIB)
    (tmp_path / "fits").write_bytes(bytes(MIB))
    (tmp_path / "large").write_bytes(bytes(MIB + 1))
    (shared / "there").write_bytes(b"12345")
    # What looks like a line of the server's own, and moves the cursor of a terminal.
    odd = b"x\nAccepted publickey for work from 127.0.0.1 port 1 ssh2: ED25519 SHA256:x\x1b[2J\xff"
    (shared / os.fsdecode(odd)).write_bytes(b"odd")
    ran = await clients.batch(
        f"put {tmp_path}/fits fits",
        f"-put {tmp_path}/large large",
        f"get there {tmp_path}/back",
        f"get x* {tmp_path}/odd",
        "rename fits kept",
        "rm there",
    )
    assert ran.code == 0, ran.err
    assert (shared / "kept").stat().st_size == MIB
    assert (shared / "large").stat().st_size <= MIB
    assert "large" in ran.err
    session = await client.sessions.get("logged")
    me = (await client.users.caller()).name

    async def found() -> str:
        text = await logged(client, session.id)
        return text if 'remove name "/data/there"' in text else ""

    text = await eventually(found)
    # The journal says whose the connection is, and how the log calls it.
    opened, certified = await entered(client, session, pb.ACCESS_METHOD_SFTP, pb.ACCESS_METHOD_SSH_CERTIFICATE)
    assert (opened.user, opened.source, certified.source) == (me, "127.0.0.1", "127.0.0.1")
    assert opened.connection_address.startswith("127.")
    accepted = f"Accepted publickey for work from {opened.connection_address} port "
    line = next(line for line in text.splitlines() if line.startswith(accepted))
    assert f" {certified.key_fingerprint} ID {me} (serial " in line
    assert f"session opened for local user work from [{opened.connection_address}]" in text
    # Who it was, by a certificate that names the user; and what it did, by the number of its process.
    assert re.search(rf"^Accepted publickey for work .* ID {me} \(serial ", text, re.MULTILINE)
    number = re.search(r"^internal-sftp\[(\d+)\]: session opened for local user work", text, re.MULTILINE)
    assert number is not None, text
    for line in (
        f'close "/data/fits" bytes read 0 written {MIB}',
        'close "/data/there" bytes read 5 written 0',
        'posix-rename old "/data/fits" new "/data/kept"',
    ):
        assert f"internal-sftp[{number[1]}]: {line}" in text
    refused = rf'sent status Failure\ninternal-sftp\[{number[1]}\]: close "/data/large" bytes read 0 written \d+$'
    assert re.search(refused, text.replace("\r", ""), re.MULTILINE)
    assert "\x1b" not in text
    assert not re.search(r"^Accepted .* port 1 ssh2", text, re.MULTILINE)


async def entered(client: Client, session: Session, *methods: pb.AccessMethod.ValueType) -> list[pb.KernelAccessed]:
    """Returns the first entry of the journal by each method."""
    found: dict[int, pb.KernelAccessed] = {}
    async with aclosing(client.sessions.watch(after_revision=0, session_id=session.id)) as events:
        async for event in events:
            if event.WhichOneof("change") == "kernel_accessed":
                found.setdefault(event.kernel_accessed.method, event.kernel_accessed)
            if found.keys() >= set(methods):
                break
    return [found[method] for method in methods]


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A directory on a disk of 1 MiB and some files."""
    directory.mkdir()
    options = f"size=1m,nr_inodes={FILES},mode=1777"
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", options, "small", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["/usr/bin/umount", "--lazy", directory], check=True)


@contextlib.contextmanager
def quota(directory: Path) -> Iterator[Path]:
    """A directory on a disk with room, whose file system lets at most 1 MiB be written."""
    directory.mkdir()
    image = directory.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(128 * MIB)
    subprocess.run(["/usr/sbin/mkfs.btrfs", "--quiet", "--mixed", image], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["/usr/bin/mount", "-o", "loop", image, directory], check=True)
    try:
        for words in (("quota", "enable"), ("qgroup", "limit", "1M")):
            subprocess.run(["/usr/bin/btrfs", *words, directory], check=True)
        directory.chmod(0o777)
        yield directory
    finally:
        subprocess.run(["/usr/bin/umount", "--lazy", directory], check=True)


async def test_a_quota_of_the_file_system(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(4 * MIB))
    (tmp_path / "small").write_text("fits again")
    with quota(shared / "quota") as disk:
        clients = await serve(client, files, disk, "quota")
        ran = await clients.batch(f"-put {tmp_path}/large large", "rm large", f"put {tmp_path}/small small")
        assert ran.code == 0, ran.err
        assert "large" in ran.err
        assert (disk / "small").read_text() == "fits again"

        async def reported() -> bool:
            return 'write "/data/large": Disk quota exceeded' in await logged(client, "quota")

        await eventually(reported)
        # Until its session has ended, the disk is in use.
        await ended(client, "quota")


async def test_a_full_disk(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(2 * MIB))
    with small_disk(shared / "small") as disk:
        clients = await serve(client, files, disk, "full")
        (tmp_path / "batch").write_text("fits again")
        ran = await clients.batch(f"-put {tmp_path}/large large", "df", "rm large", f"put {tmp_path}/batch batch")
        assert ran.code == 0, ran.err
        assert "large" in ran.err
        assert "100%" in ran.out
        assert (disk / "batch").read_text() == "fits again"

        async def reported() -> bool:
            words = 'write "/data/large": No space left on device'
            return words in await logged(client, "full")

        await eventually(reported)
        # So are files without content, of which a disk has so many.
        (tmp_path / "empty").touch()
        ran = await clients.batch(
            *(f"-put {tmp_path}/empty tiny-{number}" for number in range(FILES)), "rm tiny-0", "mkdir new"
        )
        assert ran.code == 0, ran.err
        assert "tiny-" in ran.err
        assert len(list(disk.iterdir())) < FILES


async def test_connections_are_bounded_by_the_memory(files: Program, client: Client, shared: Path) -> None:
    clients = await serve(client, files, shared, "few", memory="64m")
    most = sftp_connections(64 * MIB)
    session = await client.sessions.get("few")
    words = f"{most} connections to this SFTP server are open already"
    async with contextlib.AsyncExitStack() as stack:
        opened = 0

        async def fill() -> None:
            """Opens connections until one is refused: the server ends those that say nothing for two minutes."""
            nonlocal opened
            try:
                while True:
                    await stack.enter_async_context(session.open_port("sftp"))
                    opened += 1
            except CallError as refused:
                assert str(refused).startswith(words)  # noqa: PT017  # of any number of calls, the last one
                assert (refused.reason, refused.metadata) == ("STREAM_LIMIT", {"limit": str(most)})  # noqa: PT017
            assert opened >= most

        async def kept_out() -> Outcome:
            await fill()
            return await clients.batch("pwd")

        ran = await eventually(kept_out, lambda ran: ran.code != 0)
        assert words in ran.err, "a client prints why"
        # Those of other sessions are others.
        assert (await (await serve(client, files, shared, "other")).batch("pwd")).code == 0

    async def let_in() -> bool:
        return (await clients.batch("pwd")).code == 0

    await eventually(let_in)


async def test_many_who_say_nothing(files: Program, client: Client, shared: Path) -> None:
    """Connections without a login keep no user from logging in, as far as there is memory for all."""
    clients = await serve(client, files, shared, "silent", memory="512m")
    session = await client.sessions.get("silent")
    silent = sftp_connections(512 * MIB) - 2
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(silent):
            connection = await stack.enter_async_context(session.open_port("sftp"))
            assert (await anext(aiter(connection))).startswith(b"SSH-2.0-OpenSSH")
        ran = await clients.batch("pwd")
        assert ran.code == 0, ran.err


async def test_certificates_expire(files: Program, client: Client, shared: Path, cluster: Cluster) -> None:
    clients = await serve(client, files, shared, "expired")
    session = await client.sessions.get("expired")
    lines = clients.config.read_text().splitlines()
    settings = {line.split()[0]: line.split()[1] for line in lines if line.startswith("    ")}
    certificate, public = Path(settings["CertificateFile"]), Path(f"{settings['IdentityFile']}.pub")
    line = await asyncio.to_thread(public.read_text)
    key = parse_public_key(line).key
    assert key is not None
    (secret,) = cluster.directory.rglob("ca.key")
    installation = Authority.load(secret.parent, lambda: dt.datetime.now(dt.UTC))
    authority = SessionSecrets(installation.derive_key("sessions")).ssh
    identity, now = uuid.UUID(session.id), time.time()
    # The block renews a certificate only when it is older than that.
    for made, code in (
        (authority.certify(key, identity, "me", now - 7200, 3600), 255),
        (authority.certify(key, identity, "me", now + 7200, 3600), 255),
        (authority.certify(key, uuid.uuid4(), "me", now, 3600), 255),
        (SshAuthority(b"x" * 32).certify(key, identity, "me", now, 3600), 255),
        (authority.certify(key, identity, "me", now, 3600), 0),
    ):
        await asyncio.to_thread(certificate.write_text, f"{made}\n")
        ran = await clients.batch("pwd")
        assert ran.code == code, ran.err
    for ttl in (0, 59, 3601):
        with pytest.raises(CallError, match="ttl"):
            await client.sessions.create_ssh_certificate(session.id, line, ttl=dt.timedelta(seconds=ttl))


async def test_a_hole_of_a_terabyte(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    """SFTP knows no holes: what bounds a transfer of one is the disk, or the limit, of the side that receives it."""
    tail = b"end"
    with (shared / "there").open("wb") as file:
        file.seek(TERABYTE)
        file.write(tail)
    for part in (tmp_path / "back", shared / "part"):
        with part.open("wb") as file:
            file.truncate(TERABYTE)
        part.chmod(0o666)
    clients = await serve(client, files, shared, "holes", memory="64m")
    # What is missing of a file is sent, wherever that is.
    ran = await clients.batch(
        "ls -ln there", f"reget there {tmp_path}/back", f"reput {tmp_path}/back part", "ls -ln part"
    )
    assert ran.code == 0, ran.err
    assert ran.out.count(f" {TERABYTE + len(tail)} ") == 2
    for whole in (tmp_path / "back", shared / "part"):
        with whole.open("rb") as file:
            file.seek(TERABYTE)
            assert file.read() == tail
        assert whole.stat().st_blocks < MIB >> 9
    # The whole of it, where there is no room, and where a limit says so.
    with small_disk(shared / "small") as disk:
        full = await serve(client, files, disk, "small", memory="64m")
        assert "No space left" in (await clients.batch(f"-get there {disk}/whole")).err
        (disk / "whole").unlink()
        ran = await full.batch(f"-put {tmp_path}/back whole", "rm whole", "pwd")
        assert (ran.code, "whole" in ran.err) == (0, True), ran.err
        assert "out of memory" not in await logged(client, "small")
        await ended(client, "small")
    limited = await serve(client, files, shared, "limited", max_file_bytes=MIB, memory="64m")
    ran = await limited.batch(f"-put {tmp_path}/back whole", "pwd")
    assert (ran.code, "whole" in ran.err) == (0, True), ran.err
    assert (shared / "whole").stat().st_size <= MIB
    for name in ("holes", "limited"):
        assert "out of memory" not in await logged(client, name)
