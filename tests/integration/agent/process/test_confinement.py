"""What native process kernels must not reach: system calls, other kernels' users, and sockets of the host's daemons."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Mount
from retinue.agent.host.users import UserRange
from retinue.agent.inside.exec_session import Attachment, Printed
from retinue.agent.kernel.core.frames import Start
from retinue.agent.process.root_layer import LARGEST_COPY
from tests.integration.agent.process.kernels import PYTHON, spec
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.agent.conftest import Backends

CALLS = """
import ctypes, errno, json, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
def called(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[value if isinstance(value, bytes) else ctypes.c_long(value) for value in arguments])
    if result >= 0 and number == FORK:
        if result == 0:
            os._exit(0)
        os.waitpid(result, 0)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def family(number, kind=socket.SOCK_STREAM):
    try:
        socket.socket(number, kind).close()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
X86 = platform.machine() == "x86_64"
FORK = 56 if X86 else 220
print(json.dumps({
    "clone_user": called(FORK, 0x10000000 | 17, 0, 0, 0, 0),
    "unshare_user": called(272 if X86 else 97, 0x10000000),
    "clone3": called(435, 0, 0),
    "io_uring": called(425, 8, 0),
    "add_key": called(248 if X86 else 217, 0, 0, 0, 0, 0),
    "keyctl": called(250 if X86 else 219, 0, -4, 1),
    "bpf": called(321 if X86 else 280, 0, 0, 0),
    "userfaultfd": called(323 if X86 else 282, 1),
    "perf": called(298 if X86 else 241, 0, 0, -1, -1, 0),
    "fixed_addresses": called(135 if X86 else 92, 0x40000),
    "which_personality": called(135 if X86 else 92, 0xffffffff),
    "mount": called(165 if X86 else 40, 0, 0, 0, 0, 0),
    "setns": called(308 if X86 else 268, 0, 0),
    "of_the_future": called(1000),
    "vsock": family(40), "alg": family(38), "packet": family(17), "inet": family(2), "unix": family(1), "netlink": family(16, socket.SOCK_RAW),
    "seccomp": [line.split()[1] for line in open("/proc/self/status") if line.startswith("Seccomp:")],
}))
"""
DENIED = {
    "clone_user": "EPERM",
    "unshare_user": "EPERM",
    "clone3": "ENOSYS",
    "io_uring": "EPERM",
    "add_key": "EPERM",
    "keyctl": "EPERM",
    "bpf": "EPERM",
    "userfaultfd": "EPERM",
    "perf": "EPERM",
    "fixed_addresses": "ENOSYS",
    "which_personality": "done",
    "mount": "EPERM",
    "setns": "EPERM",
    "of_the_future": "ENOSYS",
    "vsock": "EAFNOSUPPORT",
    "alg": "EAFNOSUPPORT",
    "packet": "EAFNOSUPPORT",
    "inet": "done",
    "unix": "done",
    "netlink": "done",
    "seccomp": ["2"],
}


async def attached(backends: Backends, attempt_id: str, *command: str) -> str:
    """Runs a command beside the attempt's own; what it printed."""
    assert backends.current is not None
    wire = await backends.current.kernel(attempt_id).exec()
    attachment = Attachment(wire)
    output = b""
    try:
        await attachment.start(Start(command, wire.environment, wire.directory))
        async with contextlib.aclosing(attachment.events()) as events:
            async for event in events:
                output += event.data if isinstance(event, Printed) else b""
    finally:
        await attachment.close()
    return output.decode()


async def running(backends: Backends, name: str, *command: str, **values: object) -> None:
    await backends.started(spec(name, *(command or ("sleep", "1000")), **values))


@pytest.mark.attack("system-calls")
async def test_system_calls(backends: Backends) -> None:
    """The same is denied to the command and to what enters later."""
    observed, output = await backends.ran(spec("k", PYTHON, "-c", CALLS))
    assert observed.exit_code == 0, output
    assert json.loads(output) == DENIED
    await running(backends, "m")
    assert json.loads(await attached(backends, "m.1", PYTHON, "-c", CALLS)) == DENIED


BUFFERS = """
import socket
held, sent = [], 0
listener = socket.create_server(("127.0.0.1", 0))
for _ in range(40):
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    sender.settimeout(0.2)
    try:
        sender.connect(listener.getsockname())
        held += [sender, listener.accept()[0]]
        while True:
            sent += sender.send(bytes(1 << 20))
    except OSError:
        pass
print(sent >> 20)
"""


@pytest.mark.attack("tcp-buffers")
async def test_buffers_of_connections_are_no_memory_beside_that_of_the_kernel(backends: Backends) -> None:
    observed, output = await backends.ran(spec("k", PYTHON, "-c", BUFFERS, slots={"cpu": 1000, "mem": 64 << 20}))
    # Version 2 of control groups counts them as memory, and ends the kernel.
    assert observed.reason == "OOM_KILLED" or int(output) < 32, output


@pytest.mark.attack("users-of-kernels")
async def test_each_kernel_has_a_user_of_its_own_and_keeps_it(backends: Backends) -> None:
    await backends.open()
    for name in ("k", "m"):
        await running(backends, name, "sh", "-c", "id -u; sleep 1000")
    seen = {name: int(await attached(backends, f"{name}.1", "id", "-u")) for name in ("k", "m")}
    assert len(set(seen.values())) == 2
    assert all(uid in UserRange() for uid in seen.values())
    await backends.open()
    assert {name: int(await attached(backends, f"{name}.1", "id", "-u")) for name in ("k", "m")} == seen
    await running(backends, "n")
    assert int(await attached(backends, "n.1", "id", "-u")) not in seen.values()
    # Files of one are closed to the other where both could reach them.
    assert (backends.place.directory / "scratch" / "k.1").stat().st_uid == seen["k"]
    assert (backends.place.directory / "scratch" / "k.1").stat().st_mode & 0o777 == 0o700


async def test_files_in_shared_directories_belong_to_all_kernels(backends: Backends) -> None:
    shared = backends.place.directory / "shared"
    shared.mkdir()
    (shared / "given").write_text("given\n")
    (shared / "given").chmod(0o600)
    for path in (shared, shared / "given"):
        os.chown(path, 60_000, 60_000)
    mounts = (Mount(str(shared), "", "/data", writable=True),)
    script = (
        "cat /data/given && umask 077 && echo $(id -u) >/data/made && mkdir /data/directory && stat -c %u /data/made"
    )
    first, printed = await backends.ran(spec("k", "sh", "-c", script, mounts=mounts))
    assert first.exit_code == 0, printed
    uid = printed.splitlines()[1]
    assert int(uid) in UserRange()
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in shared.iterdir()}
    assert owners == dict.fromkeys(("given", "made", "directory"), (60_000, 60_000))
    script = "cat /data/made && echo more >>/data/made && touch /data/directory/x && rm -r /data/directory && id -u"
    second, printed = await backends.ran(spec("m", "sh", "-c", script, mounts=mounts))
    assert second.exit_code == 0, printed
    assert printed.splitlines()[0] == uid
    assert printed.splitlines()[1] != uid


SIGHT = """
import json, os
def names(path):
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        return type(error).__name__
def failing(path):
    try:
        open(path, "a").close()
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "missing": {path: names(path) for path in ("/var/log", "/var/lib/dpkg", "/etc/cron.d", "/boot", "/root", "/home", "/mnt", "/run", "/srv")},
    "top": names("/"), "secret": os.path.lexists(SECRET), "shown": names(SHOWN), "hidden": names(SHOWN + "/hidden"),
    "large": [os.stat(os.path.dirname(SHOWN) + "/file").st_size, failing(os.path.dirname(SHOWN) + "/file")],
    "processes": [open(f"/proc/{number}/cmdline").read() for number in os.listdir("/proc") if number.isdigit()],
    "mounts": [line.split() for line in open("/proc/self/mountinfo")],
    "links": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)],
    "accounts": [line.split(":")[0] for line in open("/etc/passwd")],
}))
"""


@pytest.fixture
def data(backends: Backends) -> Iterator[Path]:
    """A directory for data of the node that no kernel has one of its own of."""
    directory = Path("/srv") / backends.place.agent_id
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


@pytest.mark.attack("files-of-the-host")
async def test_of_the_node_a_kernel_sees_what_programs_need_and_what_it_is_shown(
    backends: Backends, data: Path
) -> None:
    """Neither data nor logs, and no path of the node in what Linux says of processes and mounts."""
    shown, secret = data / "shown", data / "secret"
    for directory in (shown / "hidden", secret):
        directory.mkdir(parents=True)
        (directory / "token").write_text("secret")
    (shown / "large").write_bytes(bytes(LARGEST_COPY + 1))
    (data / "file").write_bytes(bytes(LARGEST_COPY + 1))
    await backends.open(shown=(shown, data / "file"), hidden=(shown / "hidden",))
    program = SIGHT.replace("SECRET", repr(str(secret))).replace("SHOWN", repr(str(shown)))
    observed, output = await backends.ran(spec("k", PYTHON, "-c", program))
    assert observed.exit_code == 0, output
    seen = json.loads(output)
    missing = dict.fromkeys(("/var/log", "/var/lib/dpkg", "/etc/cron.d", "/boot"), "FileNotFoundError")
    own = {"/root": [], "/home": ["work"], "/mnt": [], "/run": ["kernel"], "/srv": [data.name]}
    assert seen["missing"] == missing | own
    assert seen["shown"] == ["hidden", "large"]
    assert seen["hidden"] == []
    assert seen["large"] == [LARGEST_COPY + 1, "PermissionError"]
    assert not seen["secret"]
    place = str(backends.place.directory)
    assert not [line for line in seen["processes"] if place in line or "--bind" in line]
    # Where the kernel's own files are on their disk, Linux says of each mount of a directory or file.
    told = {"/dev/output", "/dev/errors"}
    for words in seen["mounts"]:
        assert words[4] in told or place not in " ".join(words), words
    assert seen["links"] == ["/dev/null", "/dev/output", "/dev/errors"]


SOCKETS = """
import asyncio, ctypes, os, socket, sys
from pathlib import Path
from retinue.agent.host import syscalls as linux
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.attempts import Phase
from tests.integration.agent.conftest import Place
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.process.kernels import PYTHON, spec

async def main():
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_FS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_SLAVE)
    linux.mount("tmpfs", "/srv", "tmpfs", 0, "mode=0755")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/srv/daemon.sock")
    os.chmod("/srv/daemon.sock", 0o666)
    listener.listen()
    Path("/srv/file").write_text("content")
    place = Place(sys.argv[1], Path(sys.argv[2]))
    ended = asyncio.Event()
    backend = ProcessRuntime(place.options(shown=(Path("/srv"),)))
    await backend.open(lambda: backend._store.observed()["k.1"].phase.ended and ended.set() if "k.1" in backend._store else None)
    program = "import socket; print(open('/srv/file').read()); socket.socket(socket.AF_UNIX).connect('/srv/daemon.sock')"
    await backend.prepare(spec("k", PYTHON, "-c", program), HOSTS)
    await backend.start("k.1")
    await ended.wait()
    print(backend.output("k.1").read(0).data.decode())
    await backend.remove("k.1")
    await backend.close()

asyncio.run(main())
"""


@pytest.mark.attack("sockets-of-the-host")
async def test_sockets_in_separate_mounts_of_the_host_lead_nowhere(backends: Backends) -> None:
    """In a process of its own, whose view of the node has a mount more."""
    arguments = [sys.executable, "-c", SOCKETS, backends.place.agent_id, str(backends.place.directory)]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, text=True, timeout=NEVER, check=False, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    assert "content" in done.stdout
    assert "ConnectionRefusedError" in done.stdout
