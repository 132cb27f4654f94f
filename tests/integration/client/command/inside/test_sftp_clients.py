"""Clients of SFTP that people have, beside OpenSSH's: libraries, tools that copy trees, and file systems."""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import subprocess
from typing import TYPE_CHECKING

import asyncssh
import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from retinue.devtools.cluster import free_ports
from tests.integration.client.command.inside.own_clients import USER, local_port, public_key, run
from tests.integration.client.command.inside.sftp_sessions import Clients, serve
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.client import Client
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20


class SecurityKey(paramiko.PKey):
    """A key in a device that a user touches at once."""

    kind, application = "sk-ssh-ed25519@openssh.com", b"ssh:"

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()

    def get_name(self) -> str:
        return self.kind

    def asbytes(self) -> bytes:
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return b"".join(len(part).to_bytes(4) + part for part in (self.kind.encode(), public, self.application))

    @property
    def line(self) -> str:
        return f"{self.kind} {self.get_base64()}"

    def can_sign(self) -> bool:
        return True

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> paramiko.Message:
        del algorithm
        touched = struct.pack(">BI", 1, 7)
        digests = [hashlib.sha256(part).digest() for part in (self.application, data)]
        message = paramiko.Message()
        message.add_string(self.kind)
        message.add_string(self._key.sign(digests[0] + touched + digests[1]))
        message.add_bytes(touched)
        return message


async def test_libraries(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    await serve(client, files, shared, "libraries")
    content = os.urandom(MIB)
    host_key = (await client.sessions.create_ssh_certificate("libraries", public_key(tmp_path))).known_hosts.split()
    token, plain = SecurityKey(), paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "key"))
    for line in (token.line, f"{plain.get_name()} {plain.get_base64()}"):
        await client.ssh_keys.add(line)
    try:
        async with local_port(client, "libraries") as (host, port):

            def by_paramiko(key: paramiko.PKey) -> tuple[bytes, list[str]]:
                with paramiko.Transport((host, port)) as transport:
                    transport.disabled_algorithms = {}
                    transport.start_client(timeout=NEVER)
                    transport.auth_publickey(USER, key)
                    with paramiko.SFTPClient.from_transport(transport) as sftp:  # type: ignore[union-attr]
                        with sftp.open("by-paramiko", "wb") as file:
                            file.write(content)
                        with sftp.open("by-paramiko", "rb") as file:
                            return file.read(), sftp.listdir(".")

            for key in (plain, token):
                await until_let_in(by_paramiko, key)
                assert await asyncio.to_thread(by_paramiko, key) == (content, ["by-paramiko"])
                (shared / "by-paramiko").unlink()
            known = asyncssh.import_known_hosts(f"@cert-authority {host_key[1]} {host_key[2]} {host_key[3]}\n")
            async with (
                asyncssh.connect(
                    *(host, port),
                    host_key_alias=host_key[1],
                    username=USER,
                    client_keys=[str(tmp_path / "key")],
                    known_hosts=known,
                ) as connection,
                connection.start_sftp_client() as sftp,
            ):
                await sftp.put(tmp_path / "key.pub", "by-asyncssh")
                assert sorted(await sftp.listdir()) == [".", "..", "by-asyncssh"]
                with pytest.raises(asyncssh.SFTPNoSuchFile):
                    await sftp.stat("/proc/1")
                with pytest.raises(asyncssh.ChannelOpenError):
                    await connection.open_connection("127.0.0.1", 2022)
    finally:
        for registered in [key async for key in client.ssh_keys.list()]:
            await client.ssh_keys.remove(registered.fingerprint)
    assert (shared / "by-asyncssh").read_bytes() == (tmp_path / "key.pub").read_bytes()


async def until_let_in(connect: object, key: paramiko.PKey) -> None:
    """Returns once the agent has learned of a key."""

    async def let_in() -> bool:
        try:
            await asyncio.to_thread(connect, key)  # type: ignore[arg-type]
        except paramiko.AuthenticationException:
            return False
        return True

    await eventually(let_in)


async def test_tools_that_copy_trees(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "trees", keys=[public_key(tmp_path)])
    tree = tmp_path / "tree"
    for number in range(60):
        (tree / f"d{number % 3}").mkdir(parents=True, exist_ok=True)
        (tree / f"d{number % 3}" / f"f{number}").write_text(str(number))
    async with local_port(client, "trees") as (host, port):
        server = ("--sftp-host", host, "--sftp-port", str(port), "--sftp-user", USER)
        how = ("--sftp-key-file", tmp_path / "key", "--sftp-disable-hashcheck", "--config", "/dev/null")
        code, out = await run("rclone", *server, *how, "sync", tree, ":sftp:/data/rclone")
    assert code == 0, out
    ran = await clients("scp", "-r", str(tree), f"{clients.host}:scp")
    assert ran.code == 0, ran.err
    for place in ("rclone", "scp"):
        found = {path.name: path.read_text() for path in (shared / place).rglob("f*")}
        assert found == {f"f{number}": str(number) for number in range(60)}


async def test_a_mounted_session(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    await serve(client, files, shared, "mounted")
    here = tmp_path / "here"
    here.mkdir()
    ran = await files("sftp-mount", "mounted:/data", str(here))
    assert ran.code == 0, ran.err
    try:
        assert here.is_mount()
        content = os.urandom(MIB)
        await asyncio.to_thread((here / "written").write_bytes, content)
        assert (shared / "written").read_bytes() == content
        (shared / "other").write_text("other")
        assert await asyncio.to_thread((here / "other").read_text) == "other"
        await asyncio.to_thread((here / "written").rename, here / "renamed")
        assert (shared / "renamed").exists()
    finally:
        code, out = await run("fusermount3", "-u", here)
        assert code == 0, out


async def test_an_ide(files: Program, client: Client, tmp_path: Path) -> None:
    """What VS Code does by ssh: a script that installs a server, and ports to that."""
    session = await client.sessions.create(type="interactive", name="ide", slots={"cpu": "0.5", "mem": "256m"})
    await session.wait("RUNNING", timeout=NEVER)
    ran = await files("ssh-config", "ide")
    assert ran.code == 0, ran.err
    (tmp_path / "config").write_text(ran.out)
    clients = Clients(files, tmp_path / "config", "ide.retinue")
    install = (
        "mkdir -p ~/.server && cd ~/.server && echo from the server >page && "
        "(python3 -m http.server --bind 127.0.0.1 8765 >/dev/null 2>&1 </dev/null & echo pid==$!==)\n"
    )
    local, socks, *_ = free_ports()
    forward = ("-L", f"127.0.0.1:{local}:127.0.0.1:8765", "-D", f"127.0.0.1:{socks}", "-o", "ExitOnForwardFailure=yes")
    # One connection does all of it, for as long as its input is open.
    process = await clients.start("ssh", "-T", *forward, clients.host, "sh", text=install)
    try:
        assert process.stdout is not None
        assert (await asyncio.wait_for(process.stdout.readline(), NEVER)).startswith(b"pid==")
        for how in (
            ("curl", "-s", f"http://127.0.0.1:{local}/page"),
            ("curl", "-s", "--socks5", f"127.0.0.1:{socks}", "http://127.0.0.1:8765/page"),
        ):

            async def page(how: tuple[str, ...] = how) -> bool:
                return (await run(*how, "--max-time", "5"))[1] == "from the server\n"

            await eventually(page)
    finally:
        process.kill()
        await process.wait()


async def test_rsync(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    """Both ways, with names that a shell would take apart, and nothing but rsync."""
    clients = await serve(client, files, shared, "synced", max_file_bytes=MIB, umask="002")
    await asyncio.to_thread(synchronize, clients, shared, tmp_path)
    daemons = ("--daemon .", ". --daemon", "-s .", "-vs .", ". -s", "--secluded-args .", "'--dae'mon .")
    servers = [f"rsync --server {words}" for words in daemons]
    for command in ("id", "rsync --daemon", *servers, "rsync --version", "sh -c id", ""):
        said = (await run("ssh", "-F", clients.config, "-T", clients.host, command, **clients.program.environment))[1]
        assert "This service allows sftp and rsync connections only" in said, command
    more = ("ssh", "-F", clients.config, clients.host, "rsync --server; id")
    assert "uid=" not in (await run(*more, **clients.program.environment))[1]


def synchronize(clients: Clients, shared: Path, tmp_path: Path) -> None:
    def rsync(*arguments: str) -> int:
        command = ["rsync", "-e", f"ssh -F {clients.config}", *arguments]
        return subprocess.run(command, env=clients.program.environment, timeout=NEVER, check=False).returncode

    shared.chmod(0o2777)
    odd = "a b'c\"d $(touch x) *"
    local = tmp_path / "tree" / "sub"
    local.mkdir(parents=True)
    # As they shall be there: those of a directory with a set-group bit cannot be changed.
    for directory in (local, local.parent):
        directory.chmod(0o775)
    names = {odd, "plain.csv", "other.csv"}
    for name in names:
        (local / name).write_text(name)
    assert rsync("-rl", f"{tmp_path}/tree/", f"{clients.host}:made/") == 0
    assert {path.name: path.read_text() for path in (shared / "made/sub").iterdir()} == {name: name for name in names}
    # As the directory and the umask have it.
    assert ((shared / "made").stat().st_mode & 0o7777, (shared / "made").stat().st_gid) == (
        0o2775,
        shared.stat().st_gid,
    )
    back = tmp_path / "back"
    for what in ("/data/made/sub/*.csv", f"/data/made/sub/{odd}"):
        assert rsync("-r", f"{clients.host}:{what}", f"{back}/") == 0
    assert {path.name for path in back.iterdir()} == names
    # More names than fit into a small array: none is left out.
    (shared / "many").mkdir()
    for number in range(1500):
        (shared / "many" / f"{number}.csv").touch()
    assert rsync("-r", f"{clients.host}:/data/many/*.csv", f"{tmp_path}/many/") == 0
    assert len(list((tmp_path / "many").iterdir())) == 1500
    (tmp_path / "large").write_bytes(bytes(MIB + 1))
    assert rsync(str(tmp_path / "large"), f"{clients.host}:large") != 0
    assert not (shared / "large").exists()
