"""A client of one's own against the server of a system session: what it may ask for, whom it may call itself,
and what it may name files.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import asyncssh
import paramiko
import pytest

from tests.integration.client.command.inside.own_clients import USER, as_user, local_port, public_key
from tests.integration.client.command.inside.sftp_sessions import logged, serve
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from retinue.client.client import Client
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACCEPTED = "Accepted publickey for "
FORGED = f"{ACCEPTED}{USER} from 127.0.0.1 port 1 ssh2: ED25519 SHA256:x"
NAMES = (
    *("root", "", "work ", "../work", "/work", "-work", f"x\n{FORGED}", f"x\r\n{FORGED}"),
    *("work\0root", "w" * 4096, "\u202ework", b"\xff\xfework"),
)


def granted(transport: paramiko.Transport, request: Callable[[paramiko.Channel], object]) -> bool:
    """Returns whether the server grants a request on a channel of its own."""
    channel = transport.open_session(timeout=NEVER)
    try:
        request(channel)
    except paramiko.SSHException:
        return False
    finally:
        channel.close()
    return True


def ask(kind: str) -> Callable[[paramiko.Channel], None]:
    """A request without arguments whose answer is waited for."""

    def request(channel: Any) -> None:
        message = paramiko.Message()
        message.add_byte(bytes([98]))  # SSH_MSG_CHANNEL_REQUEST
        message.add_int(channel.remote_chanid)
        message.add_string(kind)
        message.add_boolean(True)
        channel._event_pending()  # noqa: SLF001  # what the library does not ask for, or not with an answer
        channel.transport._send_user_message(message)  # noqa: SLF001
        channel._wait_for_event()  # noqa: SLF001

    return request


def run(command: bytes) -> Callable[[paramiko.Channel], None]:
    """Runs a command, and wants to see that it is refused in words."""

    def request(channel: paramiko.Channel) -> None:
        channel.exec_command(command.decode())
        channel.settimeout(NEVER)
        assert channel.recv(64).startswith(b"This service allows sftp and rsync connections only")

    return request


@pytest.mark.attack("sftp-escapes")
async def test_what_a_channel_gets(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    await serve(client, files, shared, "raw", keys=[public_key(tmp_path)])
    key = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "key"))
    async with local_port(client, "raw") as address:

        def requests() -> dict[str, bool]:
            with as_user(address, key, USER) as transport:
                granting = {
                    "sftp": lambda channel: channel.invoke_subsystem("sftp"),
                    "other subsystem": lambda channel: channel.invoke_subsystem("/bin/sh"),
                    "exec": run(b"id; touch /data/ran"),
                    "pty": lambda channel: channel.get_pty(),
                    "x11": lambda channel: channel.request_x11(auth_cookie="00"),
                    "agent": ask("auth-agent-req@openssh.com"),
                    "unknown": ask("keepalive@attack.test"),
                }
                found = {name: granted(transport, request) for name, request in granting.items()}
                assert transport.is_active()
                return found

        # A command is answered by the server that would run it: in words, and not run.
        assert {name for name, yes in (await asyncio.to_thread(requests)).items() if yes} == {"sftp", "exec"}
        async with asyncssh.connect(
            *address, username=USER, client_keys=[str(tmp_path / "key")], known_hosts=None, config=None
        ) as connection:
            for opening in (
                connection.open_connection("127.0.0.1", 2022),
                connection.open_connection("localhost", 1),
                connection.open_unix_connection("/dev/log"),
                connection.open_tun(0),
                connection.open_tap(0),
            ):
                with pytest.raises(asyncssh.ChannelOpenError):
                    await opening
            for listening in (
                connection.start_server(lambda *_: None, "127.0.0.1", 2201),
                connection.start_unix_server(lambda: None, "/data/socket"),
            ):
                with pytest.raises(asyncssh.ChannelListenError):
                    await listening
    assert await asyncio.to_thread(lambda: list(shared.iterdir())) == []


@pytest.mark.attack("sftp-escapes")
async def test_names_of_users(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    await serve(client, files, shared, "named", keys=[public_key(tmp_path)])
    key = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "key"))
    async with local_port(client, "named") as address:
        for name in NAMES:
            with pytest.raises((paramiko.SSHException, EOFError)):
                await asyncio.to_thread(as_user, address, key, name)
        (await asyncio.to_thread(as_user, address, key, USER)).close()

    # Agents read who was let in from these lines, and none of them is a name's.
    def let_in(text: str) -> list[str]:
        return re.findall(f"(?m)^{ACCEPTED}.*", text)

    text = await eventually(lambda: logged(client, "named"), let_in)
    assert text.count(ACCEPTED) > 1
    assert len(let_in(text)) == 1
    assert f"Invalid user x?{ACCEPTED}" in text
    assert "\u202e" not in text


async def test_twins(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "twins")
    names = ["a", "A", unicodedata.normalize("NFC", "\u00e9"), unicodedata.normalize("NFD", "\u00e9"), "\u0430"]
    for number, name in enumerate(names):
        (tmp_path / str(number)).write_text(name)
    ran = await clients.batch(*(f"put {tmp_path}/{number} {name}" for number, name in enumerate(names)))
    assert ran.code == 0, ran.err
    there = await asyncio.to_thread(lambda: {path.name: path.read_text() for path in shared.iterdir()})
    assert there == {name: name for name in names}
