"""Hostile clients of a system session, hostile files in what it mounts, and servers that are not the session's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING, Any

import paramiko
import pytest

from tests.integration.client.command.inside.own_clients import USER, as_user, local_port, public_key
from tests.integration.client.command.inside.sftp_sessions import Clients, serve
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.client import Client
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
MAX_SESSIONS = 10
LARGEST_NAME = 255
DEPTH = 3000


def send(transport: Any, kind: int, *parts: int | bytes | bool) -> None:
    """Sends a message that the library would not."""
    message = paramiko.Message()
    message.add_byte(bytes([kind]))
    for part in parts:
        if isinstance(part, bool):
            message.add_boolean(part)
        elif isinstance(part, int):
            message.add_int(part)
        else:
            message.add_string(part)
    transport._send_user_message(message)  # noqa: SLF001


@pytest.mark.attack("sftp-floods")
async def test_what_one_connection_asks_for_costs_no_other(
    files: Program, client: Client, shared: Path, tmp_path: Path
) -> None:
    clients = await serve(client, files, shared, "hostile", keys=[public_key(tmp_path)])
    key = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "key"))
    async with local_port(client, "hostile") as address:

        def channels() -> int:
            with as_user(address, key, USER) as transport:
                opened: list[paramiko.Channel] = []
                with contextlib.suppress(paramiko.ChannelException):
                    while len(opened) <= MAX_SESSIONS:
                        opened.append(transport.open_session(timeout=NEVER))
                        opened[-1].invoke_subsystem("sftp")
                for _ in range(20):
                    transport.renegotiate_keys()
                assert paramiko.SFTPClient(opened[0]).listdir("/data") == []
                return len(opened)

        assert await asyncio.to_thread(channels) == MAX_SESSIONS

        def environment() -> list[str]:
            with as_user(address, key, USER) as transport:
                channel: Any = transport.open_session(timeout=NEVER)
                for name in (
                    "LD_PRELOAD",
                    "BASH_ENV",
                    "SSH_ORIGINAL_COMMAND",
                    *(f"V{number}" for number in range(500)),
                ):
                    send(transport, 98, channel.remote_chanid, b"env", False, name.encode(), b"/data/evil.so")
                channel.invoke_subsystem("sftp")
                return paramiko.SFTPClient(channel).listdir("/data")

        assert await asyncio.to_thread(environment) == []

        def ended_by(kind: int, *parts: int | bytes | bool) -> None:
            """Sends what makes no sense; the server may end this connection, and no other."""
            with as_user(address, key, USER) as transport:
                channel: Any = transport.open_session(timeout=NEVER)
                with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                    send(transport, kind, channel.remote_chanid, *parts)
                    channel.invoke_subsystem("sftp")

        other = await asyncio.to_thread(as_user, address, key, USER)
        with other:
            sftp = await asyncio.to_thread(paramiko.SFTPClient.from_transport, other)
            assert sftp is not None
            messages: tuple[tuple[int, tuple[int | bytes | bool, ...]], ...] = (
                (93, (0xFFFFFFFF,)),  # a window beyond all bounds
                (94, (bytes(64 * 1024),)),  # data before any program was asked for
                (98, (b"subsystem", True, b"\xff" * 30_000)),
                (98, (b"exec", True, b"\0" * 30_000)),
                (255, ()),  # no such message
            )
            for kind, parts in messages:
                await asyncio.to_thread(ended_by, kind, *parts)
                assert await asyncio.to_thread(sftp.listdir, "/data") == []

        def garbage() -> None:
            for line in (
                b"GET / HTTP/1.0\r\n\r\n",
                b"SSH-2.0-x\r\n" + b"\xff" * 40_000,
                b"SSH-1.5-x\r\n",
                b"\0" * 70_000,
            ):
                with socket.create_connection(address, NEVER) as raw, contextlib.suppress(OSError):
                    raw.sendall(line)
                    while raw.recv(1 << 16):
                        pass

        await asyncio.to_thread(garbage)
    ran = await clients.batch("pwd")
    assert ran.code == 0, ran.err


async def test_what_lies_in_a_mount(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    (shared / "outside").write_text("content")
    mount = shared / "mount"
    mount.mkdir()
    mount.chmod(0o777)
    clients = await serve(client, files, mount, "odd", max_file_bytes=MIB, keys=[public_key(tmp_path)])
    os.mkfifo(mount / "fifo", 0o666)
    os.mknod(mount / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    for name in ("fifo", "zero"):
        (mount / name).chmod(0o666)
    (mount / "up").symlink_to("../outside")
    (mount / "loop").symlink_to("loop")
    (mount / "process").symlink_to("/proc/1/root/etc/shadow")
    longest = os.fsdecode(b"\xff" * LARGEST_NAME)
    (mount / longest).write_text("long")
    make_deep(mount / "deep")
    key = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "key"))
    try:
        async with local_port(client, "odd") as address:
            with await asyncio.to_thread(as_user, address, key, USER) as transport:
                await asyncio.to_thread(ask_for_odd_files, transport)
            waiting = await asyncio.to_thread(as_user, address, key, USER)
            with waiting:
                sftp = await asyncio.to_thread(paramiko.SFTPClient.from_transport, waiting)
                assert sftp is not None
                # Nothing ever writes to it: this connection waits, and no other does.
                opening = asyncio.ensure_future(asyncio.to_thread(sftp.open, "/data/fifo", "rb"))
                ran = await clients.batch("ls -1 fifo", f"get {'?' * LARGEST_NAME} {tmp_path}/long", "ls -1 deep/d/d")
                assert ran.code == 0, ran.err
                assert (tmp_path / "long").read_text() == "long"
                session = await client.sessions.get("odd")
                await session.terminate(force=True)
                await session.wait_ended(NEVER)
                async with asyncio.timeout(NEVER):
                    with pytest.raises((OSError, EOFError, paramiko.SSHException)):
                        await opening
    finally:
        await asyncio.to_thread(remove_deep, mount / "deep")
    assert (shared / "outside").read_text() == "content"
    assert not (mount / "grown").exists() or (mount / "grown").stat().st_size <= MIB


def ask_for_odd_files(transport: paramiko.Transport) -> None:
    """Asks for what is no file, or not in the mount, and makes what must not be made."""
    sftp = paramiko.SFTPClient.from_transport(transport)
    assert sftp is not None
    for name in ("zero", "up", "loop", "process", "deep" + "/d" * DEPTH, "x" * (LARGEST_NAME + 1), "x/" * 100_000):
        with pytest.raises(OSError):  # noqa: PT011  # the words are the server's
            sftp.open(f"/data/{name}", "rb").read(1)
    for target in ("../outside", "/run/kernel/ssh/host_key", "/etc/passwd"):
        sftp.symlink(target, "/data/made")
        with pytest.raises(OSError):  # noqa: PT011
            sftp.open("/data/made", "wb")
        sftp.remove("/data/made")
    with sftp.open("/data/grown", "wb") as file:
        file.write(b"x")
        for size in (2 * MIB, 1 << 40, (1 << 63) - 1):
            with pytest.raises(OSError):  # noqa: PT011
                file.truncate(size)
            file.seek(size)
            with pytest.raises(OSError):  # noqa: PT011, PT012  # either of both
                file.write(b"x")
                file.flush()
    assert (sftp.stat("/data/grown").st_size or 0) <= MIB
    # Nothing of it has ended the connection.
    assert stat.S_ISFIFO(sftp.stat("/data/fifo").st_mode or 0)


def make_deep(top: Path) -> None:
    """Makes more directories beneath each other than a path can name."""
    top.mkdir()
    directory = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=directory)
        inner = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(directory)


def remove_deep(top: Path) -> None:
    """Removes them: each is moved up beside the top, and the one that held it is empty then."""
    while (top / "d").is_dir():
        (top / "d").rename(top.with_name("next"))
        top.rmdir()
        top.with_name("next").rename(top)
    top.rmdir()


async def test_a_server_that_is_not_the_sessions(files: Program, client: Client, shared: Path) -> None:
    clients = await serve(client, files, shared, "true")
    other = await serve(client, files, shared, "false")
    # What an agent could do that is not honest: lead to another server, whose keys are those of its own sessions.
    proxies = [
        next(line.strip() for line in text.config.read_text().splitlines() if "ProxyCommand" in line)
        for text in (clients, other)
    ]
    text = clients.config.read_text().replace(proxies[0], proxies[1])
    assert text != clients.config.read_text()
    led_astray = clients.config.with_name("astray")
    led_astray.write_text(text)
    ran = await Clients(files, led_astray, clients.host).batch("pwd")
    assert ran.code == 255
    assert "Host key verification failed" in ran.err or "principal" in ran.err


async def test_keys_that_are_withdrawn_before_they_are_used(
    files: Program, client: Client, shared: Path, tmp_path: Path
) -> None:
    await serve(client, files, shared, "early")
    line, key = public_key(tmp_path), paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "key"))
    registered = await client.ssh_keys.add(line)
    try:
        async with local_port(client, "early") as address, asyncio.timeout(NEVER):

            async def let_in() -> paramiko.Transport | None:
                try:
                    return await asyncio.to_thread(as_user, address, key, USER)
                except (paramiko.SSHException, EOFError):
                    return None

            idle = await eventually(let_in)
            assert idle is not None
            beginning = paramiko.Transport(address)
            with idle, beginning:
                await asyncio.to_thread(beginning.start_client, timeout=NEVER)
                await client.ssh_keys.remove(registered.fingerprint)
                # One that was let in, and has asked for nothing yet.
                await eventually(lambda: not idle.is_active())
                # One whose login comes after that.
                # The server may have ended the connection before that arrives.
                with pytest.raises((paramiko.SSHException, EOFError, ConnectionError)):
                    await asyncio.to_thread(beginning.auth_publickey, USER, key)
    finally:
        for left in [key async for key in client.ssh_keys.list()]:
            await client.ssh_keys.remove(left.fingerprint)
