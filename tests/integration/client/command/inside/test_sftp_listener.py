"""`retinue sftp --listen`: clients that are given an address, a port and a key of the host,
and start no program to connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import asyncssh
import paramiko
import pytest

from tests.integration.client.command.conftest import Program, line_with
from tests.integration.client.command.inside.own_clients import USER, public_key, run
from tests.integration.client.command.inside.sftp_sessions import direct_port, relay_port, serve, unreachable
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20


@contextlib.asynccontextmanager
async def listening(files: Program, *arguments: str) -> AsyncIterator[tuple[int, str, asyncio.subprocess.Process]]:
    """A local port: its number, the line that pins the key of the host, and the program."""
    process = await files.start("sftp", "--listen", *arguments)
    try:
        place = (await line_with(process.stdout, f"sftp://{USER}@127.0.0.1:")).split()[0]
        pin = (await line_with(process.stdout, "known_hosts ")).removeprefix("known_hosts ").strip()
        yield int(place.rpartition(":")[2]), pin, process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def by_paramiko(port: int, hosts: Path, key: Path, content: bytes, name: str) -> bytes:
    """Writes and reads a file as programs do that know nothing but a file of known hosts. Raises SSHException."""
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(hosts))
        client.connect(
            "127.0.0.1",
            port,
            USER,
            pkey=paramiko.Ed25519Key.from_private_key_file(str(key)),
            allow_agent=False,
            look_for_keys=False,
            timeout=NEVER,
        )
        with client.open_sftp() as sftp:
            with sftp.open(name, "wb") as file:
                file.write(content)
            with sftp.open(name, "rb") as file:
                return file.read()


@pytest.mark.parametrize("direct", [True, False])
async def test_clients_by_host_and_port(
    files: Program, client: Client, shared: Path, tmp_path: Path, direct: bool
) -> None:
    await serve(client, files, shared, "listening", keys=[public_key(tmp_path)])
    content, hosts, key = os.urandom(MIB), tmp_path / "hosts", tmp_path / "key"
    hidden = (
        contextlib.nullcontext()
        if direct
        else unreachable(
            [await direct_port(client, "listening"), await relay_port(client, "listening")], "reject with tcp reset"
        )
    )
    with hidden:
        async with listening(files, "0", "listening") as (port, pin, _):
            hosts.write_text(f"{pin}\n")
            assert await asyncio.to_thread(by_paramiko, port, hosts, key, content, "by-paramiko") == content
            async with (
                asyncssh.connect(
                    *("127.0.0.1", port), username=USER, client_keys=[str(key)], known_hosts=str(hosts), config=None
                ) as connection,
                connection.start_sftp_client() as sftp,
            ):
                await sftp.put(tmp_path / "key.pub", "by-asyncssh")
            # Nothing but the pin is known to OpenSSH, which lftp starts.
            how = f"ssh -a -x -F /dev/null -i {key} -o UserKnownHostsFile={hosts} -o StrictHostKeyChecking=yes -o BatchMode=yes"
            script = (
                f"set sftp:connect-program '{how}'; set net:max-retries 1; open sftp://{USER}:@127.0.0.1:{port}; "
                f"put {tmp_path}/key.pub -o /data/by-lftp; get /data/by-lftp -o {tmp_path}/back"
            )
            code, out = await run("lftp", "-c", script, HOME=str(tmp_path))
            assert code == 0, out
            if direct:
                # A key that is another's is none that clients take.
                code, out = await run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other")
                assert code == 0, out
                false = f"{pin.split()[0]} {(tmp_path / 'other.pub').read_text()}"
                hosts.write_text(false)
                with pytest.raises(paramiko.BadHostKeyException):
                    await asyncio.to_thread(by_paramiko, port, hosts, key, b"", "false")
    assert (shared / "by-paramiko").read_bytes() == content
    for name in (shared / "by-asyncssh", shared / "by-lftp", tmp_path / "back"):
        assert name.read_bytes() == (tmp_path / "key.pub").read_bytes()
    assert not (shared / "false").exists()


async def test_it_ends_with_the_session(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    await serve(client, files, shared, "ending", keys=[public_key(tmp_path)])
    async with listening(files, "127.0.0.1:0", "ending") as (port, pin, process):
        async with asyncssh.connect(
            *("127.0.0.1", port),
            username=USER,
            client_keys=[str(tmp_path / "key")],
            known_hosts=asyncssh.import_known_hosts(pin),
            config=None,
        ) as connection:
            session = await client.sessions.get("ending")
            await session.terminate(force=True)
            async with asyncio.timeout(NEVER):
                await connection.wait_closed()
                assert await process.wait() == 0
        assert process.stderr is not None
        assert b"ending has ended" in await process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x", "files"), "'x' is not [ADDRESS:]PORT"),
        (("65536", "files"), "is not [ADDRESS:]PORT"),
        (("192.0.2.1:0", "files"), "cannot listen at 192.0.2.1:0"),
        (("0", "files:/data"), "--listen takes only SESSION"),
        (("-k", "sub1", "0", "files"), "is not the name of a kernel of this session"),
    ],
)
async def test_what_it_refuses(
    files: Program, client: Client, shared: Path, arguments: tuple[str, ...], words: str
) -> None:
    await serve(client, files, shared, "files")
    options = ("-k", "sub1") if arguments[0] == "-k" else ()
    ran = await files("sftp", *options, "--listen", *arguments[len(options) :])
    assert ran.code != 0
    assert words in ran.err
