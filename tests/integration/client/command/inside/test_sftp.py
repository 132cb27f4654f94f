"""System sessions as people use them: OpenSSH's clients over the API, by certificates and by keys,
and what they cannot do.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import pytest

from retinue.client import enum_names
from retinue.client.errors import CallError
from retinue.manager.v1 import fleet_service_pb2, session_pb2
from tests.integration.client.command.inside.sftp_sessions import MARKER, Clients, answered, opened, serve
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from tests.integration.client.command.conftest import Program
    from tests.support.forked_programs import Outcome

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20


async def test_there_and_back(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    ran = await files("run", "--type", "system", "-n", "files", "--mount", f"{shared}:/data:rw")
    assert ran.code == 0, ran.err
    content = os.urandom(8 * MIB)
    (tmp_path / "sent").write_bytes(content)
    (tmp_path / "batch").write_text(f"put {tmp_path}/sent received\nmkdir sub\nls -1\nget received {tmp_path}/back\n")
    ran = await files("sftp", "files", "-b", str(tmp_path / "batch"))
    assert ran.code == 0, ran.err
    assert "received" in ran.out
    assert (shared / "received").read_bytes() == (tmp_path / "back").read_bytes() == content
    session = await client.sessions.get("files")
    entered = [access for access in await accesses(client, session) if access in {"SFTP", "SSH_CERTIFICATE"}]
    assert entered == ["SSH_CERTIFICATE", "SFTP"]


async def accesses(client: Client, session: Session) -> list[str]:
    """Returns what the journal says of accesses so far, in order."""
    found = []
    async with aclosing(client.sessions.watch(after_revision=0, session_id=session.id)) as events:
        async for event in events:
            if event.WhichOneof("change") == "kernel_accessed":
                found.append(enum_names.name_of(enum_names.ACCESS_METHOD, event.kernel_accessed.method))
            if event.revision >= (session.revision or 0):
                return found
    return found


async def test_names_resume_and_links(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "resumed")
    content = os.urandom(4 * MIB)
    (tmp_path / "whole").write_bytes(content)
    (shared / "part").write_bytes(content[: MIB + 17])
    (shared / "part").chmod(0o666)
    (tmp_path / "half").write_bytes(content[: 2 * MIB])
    (shared / "whole").write_bytes(content)
    odd = b"l\xe4nge\xff \n"
    (shared / os.fsdecode(odd)).write_bytes(b"odd")
    (shared / "out").symlink_to("/etc/shadow")
    (shared / "up").symlink_to("../../../../etc")
    (shared / "over").symlink_to(tmp_path)
    ran = await clients.batch(
        f"reput {tmp_path}/whole part",
        f"reget whole {tmp_path}/half",
        f"get l* {tmp_path}/odd",
        f"-get out {tmp_path}/stolen",
        f"-get over/whole {tmp_path}/stolen",
        "-ls up/shadow",
        "-ls ../../..",
    )
    assert ran.code == 0, ran.err
    assert (shared / "part").read_bytes() == (tmp_path / "half").read_bytes() == content
    assert (tmp_path / "odd").read_bytes() == b"odd"
    assert not (tmp_path / "stolen").exists()
    assert "shadow" not in ran.out.replace("ls up/shadow", "")
    ran = await clients("scp", f"{clients.host}:whole", str(tmp_path / "copied"))
    assert (ran.code, (tmp_path / "copied").read_bytes() == content) == (0, True), ran.err


async def test_a_tree_by_lftp(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "mirrored")
    tree = tmp_path / "tree"
    for number in range(200):
        (tree / f"d{number % 5}").mkdir(parents=True, exist_ok=True)
        (tree / f"d{number % 5}" / f"f{number}").write_text(str(number))
    connect = f"set sftp:connect-program 'ssh -a -x -F {clients.config}'"
    script = f"{connect}; set net:max-retries 1; open sftp://{clients.host}; mirror -R -P 4 {tree} /data/tree; mirror /data/tree {tmp_path}/back"
    lftp = await asyncio.create_subprocess_exec("lftp", "-c", script, env=files.environment)
    async with asyncio.timeout(NEVER):
        assert await lftp.wait() == 0
    for place in (shared / "tree", tmp_path / "back"):
        assert {path.name: path.read_text() for path in place.rglob("f*")} == {f"f{n}": str(n) for n in range(200)}


@pytest.mark.attack("sftp-escapes")
async def test_what_is_refused(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "jailed")
    (shared / "file").write_text("content")
    (shared / "file").chmod(0o666)
    other = await serve(client, files, shared, "other-jail")
    for arguments in (("id",), ("-tt",), ("-s", "other"), ("/bin/sh",)):
        ran = (
            await clients("ssh", clients.host, *arguments)
            if arguments[0] != "-tt"
            else await clients("ssh", "-tt", clients.host)
        )
        assert ran.code != 0
        assert "uid=" not in ran.out
    for forwarding in (("-L", f"{tmp_path}/here:127.0.0.1:2022"), ("-R", "2201:127.0.0.1:1"), ("-D", "127.0.0.1:0")):
        process = await clients.start("ssh", "-N", "-o", "ExitOnForwardFailure=yes", *forwarding, clients.host)
        if forwarding[0] == "-R":
            async with asyncio.timeout(NEVER):
                assert b"forwarding failed" in (await process.communicate())[1]
        else:
            # The client listens by itself; what it asks the server for is refused, as the session's log says.
            process.kill()
            await process.wait()
    ran = await clients("ssh", "-W", "127.0.0.1:2022", clients.host)
    assert (ran.code, ran.out) == (255, "")
    assert "administratively prohibited" in ran.err
    # The certificate of another session, and none.
    certificate = next(line for line in other.config.read_text().splitlines() if "CertificateFile" in line).split()[1]
    alone = clients.config.with_name("without")
    kept = [line for line in clients.config.read_text().splitlines() if "CertificateFile" not in line]
    alone.write_text("\n".join(kept))
    for extra in ((), ("-o", f"CertificateFile={certificate}"), ("-o", "PreferredAuthentications=password")):
        ran = await Clients(files, alone, clients.host)("sftp", *extra, "-o", "BatchMode=yes", clients.host)
        assert ran.code == 255, extra
        assert "Permission denied (publickey)" in ran.err
    # A set-id bit, devices' directories, the key of the host, and memory of processes.
    ran = await clients.batch(
        "-chmod 4755 file",
        "-chmod 2755 file",
        "-ls -l /proc",
        "-put /etc/hostname /etc/hostname",
        f"-get /run/kernel/ssh/host_key {tmp_path}/stolen",
        f"-get /etc/passwd {tmp_path}/passwd",
        "-put /etc/hostname /run/kernel/ssh/authorized_keys",
        "-rename file /home/file",
        "-ln file /run/file",
    )
    assert ran.code == 0, ran.err
    assert (shared / "file").stat().st_mode & 0o6000 == 0
    assert "/proc" in ran.err
    assert not (tmp_path / "stolen").exists() or (tmp_path / "stolen").read_bytes() == b""
    assert (tmp_path / "passwd").read_text().startswith("work:x:")
    assert (tmp_path / "passwd").read_text().count("\n") == 1
    assert (shared / "file").exists()


async def test_read_only(files: Program, client: Client, shared: Path) -> None:
    clients = await serve(client, files, shared, "read-only", writable=False)
    (shared / "file").write_text("content")
    (shared / "file").chmod(0o666)
    ran = await clients.batch("-put /etc/hostname file", "-rm file", "-mkdir new", "-chmod 600 file", "ls -1")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "file"), ran.err
    assert ((shared / "file").read_text(), (shared / "new").exists()) == ("content", False)


async def test_withdrawn_keys_end_connections(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "keyed")
    (shared / MARKER).touch()
    for name in ("kept", "gone"):
        made = await asyncio.create_subprocess_exec(
            "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name
        )
        assert await made.wait() == 0
    lines = clients.config.read_text().splitlines()
    plain = [line for line in lines if "CertificateFile" not in line and "IdentityFile" not in line]
    (tmp_path / "plain").write_text("\n".join(plain))
    by_key = Clients(files, tmp_path / "plain", clients.host)
    with pytest.raises(AssertionError):
        await answers(by_key, "-i", str(tmp_path / "gone"))
    for name in ("kept", "gone"):
        ran = await files("keys", "add", f"{tmp_path}/{name}.pub")
        assert ran.code == 0, ran.err
    try:
        assert (await files("keys", "add", f"{tmp_path}/gone.pub")).code == 1, "it is registered already"
        async with asyncio.timeout(NEVER):
            # The agent learns of it within moments.
            while (await by_key("sftp", "-b", "-", "-i", str(tmp_path / "gone"), clients.host, text="pwd\n")).code:
                pass
        kept = [await opened(by_key, "-i", str(tmp_path / "kept")), await opened(clients)]
        gone = await opened(by_key, "-i", str(tmp_path / "gone"))
        # For two minutes at this rate.
        (tmp_path / "sent").write_bytes(bytes(64 * MIB))
        slow = ("-l", "4000", "-b", "-", "-i", str(tmp_path / "gone"))
        sending = await by_key.start("sftp", *slow, clients.host, text=f"put {tmp_path}/sent received\n")
        await eventually(lambda: (shared / "received").stat().st_size, ignoring=FileNotFoundError)
        listed = await files("keys", "ls", "-o", "wide")
        fingerprint = next(
            line.split()[0]
            for line in listed.out.splitlines()
            if "gone.pub" in line or _key(tmp_path / "gone.pub") in line
        )
        ran = await files("keys", "rm", fingerprint)
        assert ran.code == 0, ran.err
        async with asyncio.timeout(NEVER):
            # The client looks at its connection with the next command.
            while gone.returncode is None:
                assert gone.stdin is not None
                with suppress(ConnectionError):
                    gone.stdin.write(b"ls -1\n")
                with suppress(TimeoutError):
                    await asyncio.wait_for(gone.wait(), 0.2)
            # So is one in the midst of a file, of which a part stays.
            assert await sending.wait() != 0
        assert (shared / "received").stat().st_size < 64 * MIB
        for process in kept:
            await answered(process)
            process.kill()
            await process.wait()
        ran = await by_key("sftp", "-b", "-", "-i", str(tmp_path / "gone"), clients.host, text="pwd\n")
        assert "Permission denied" in ran.err
    finally:
        for key in [key async for key in client.ssh_keys.list()]:
            await client.ssh_keys.remove(key.fingerprint)


def _key(path: Path) -> str:
    return path.read_text().split()[1]


async def answers(clients: Clients, *options: str) -> None:
    ran = await clients("sftp", "-b", "-", *options, clients.host, text="pwd\n")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("path", ["kernel.image", "kernel.command", "kernel.environment", "preopen", "ports", "none"])
async def test_what_no_request_may_have(client: Client, path: str) -> None:
    spec = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_SYSTEM)
    # Said here: an administrator's with a command of its own is of another kind.
    spec.system.sftp.SetInParent()
    spec.mounts.add(source="/srv", target="/data")
    match path:
        case "kernel.image":
            spec.kernel.image = "x"
        case "kernel.command":
            spec.kernel.command.append("sh")
        case "kernel.environment":
            spec.kernel.environment["A"] = "b"
        case "preopen":
            spec.preopen_ports.add(first=2000)
        case "ports":
            spec.service_ports.add(name="x", ports=[2000])
        case _:
            del spec.mounts[:]
    with pytest.raises(CallError) as refused:
        await client.sessions.create_from(spec)
    assert "INVALID_ARGUMENT" in repr(refused.value) + str(vars(refused.value))


async def test_features_quota_and_types(files: Program, client: Client, shared: Path) -> None:
    await serve(client, files, shared, "first")
    (shared / "x.py").write_text("1")
    for arguments in (
        ("exec", "first", "--", "id"),
        ("ssh", "first", "id"),
        ("cp", "first:x", str(shared)),
        ("code", "run", "-l", "python", str(shared / "x.py"), "first"),
    ):
        ran = await files(*arguments)
        assert ran.code != 0
        assert re.search("a session of type system does not have (commands|a work directory|code)", ran.err), ran
    second = await client.sessions.create(type="system", mounts=[(str(shared), "/data", False)])
    with pytest.raises(CallError, match="2 of at most 2 system sessions"):
        await client.sessions.create(type="system", mounts=[(str(shared), "/data", False)])
    await client.quotas.set("user", (await client.users.caller()).name, max_system_sessions=3)
    try:
        third = await client.sessions.create(type="system", mounts=[(str(shared), "/data", False)])
    finally:
        await client.quotas.set("user", (await client.users.caller()).name)
    for session in (second, third):
        await session.terminate(force=True)
    await client.resource_groups.update("default", session_types=["batch", "interactive"])
    try:
        with pytest.raises(CallError, match=r"spec\.type"):
            await client.sessions.create(type="system", mounts=[(str(shared), "/data", False)])
    finally:
        await client.resource_groups.update("default", session_types=[])


async def test_directories_of_users(client: Client, shared: Path) -> None:
    name = (await client.users.caller()).name
    (shared / name).mkdir()
    roots = [fleet_service_pb2.MountRoot(path=f"{shared}/{{user}}")]
    await client.resource_groups.update("default", mount_roots=roots)
    sessions: list[Session] = []
    for source in (f"{shared}/{name}", f"{shared}/{{user}}"):
        sessions.append(await client.sessions.create(type="batch", command=["true"], mounts=[(source, "/data", False)]))
        await sessions[-1].wait_ended(NEVER)
        assert sessions[-1].result == "SUCCESS"
        assert sessions[-1].view.spec.mounts[0].source == f"{shared}/{name}"
    for source in (f"{shared}/other", str(shared), f"{shared}/{name}/../other"):
        with pytest.raises(CallError, match="no root"):
            await client.sessions.create(type="batch", command=["true"], mounts=[(source, "/data", False)])


async def test_a_shell_by_ssh(files: Program, client: Client, tmp_path: Path) -> None:
    session = await client.sessions.create(
        type="interactive", name="shells", slots={"cpu": "0.5", "mem": "128m"}, environment={"SAID": "yes"}
    )
    await session.wait("RUNNING", timeout=NEVER)
    # It lasts, so that all that the server says of the connection has come when it ends.
    ran = await files("ssh", "shells", "echo $SAID; hostname; sleep 1; exit 7")
    assert (ran.code, ran.out, ran.err) == (7, "yes\nmain1\n", "")
    ran = await files("ssh-config", "shells")
    assert ran.code == 0, ran.err
    (tmp_path / "config").write_text(ran.out)
    clients = Clients(files, tmp_path / "config", "shells.retinue")
    (tmp_path / "sent").write_bytes(os.urandom(MIB))
    ran = await clients("ssh", clients.host, "cat >got; sha256sum got", text="text")
    assert (ran.code, ran.out[:8]) == (0, "982d9e3e"), ran.err
    ran = await clients("scp", str(tmp_path / "sent"), f"{clients.host}:copied")
    assert ran.code == 0, ran.err

    # The server ends with its connection.
    async def looked() -> Outcome:
        return await files("exec", "shells", "--", "sh", "-c", "cat /proc/[0-9]*/comm; ls .ssh")

    ran = await eventually(looked, lambda ran: "dropbear" not in ran.out)
    assert ran.out.splitlines()[-2:] == ["authorized_keys", "retinue_host_key"]
    for port in ("ssh:2200", "ssh:21999", "ssh:x", "ssh:"):
        with pytest.raises(CallError):
            async with session.open_port(port):
                pass
