"""Guests that mean harm: what they send costs their own channel, and what they do inside stays inside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import KernelRuntimeError, NotRunningError
from retinue.agent.host import freezer
from retinue.agent.host.processes import PROC
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError, ExecStream, SocketChannel
from retinue.agent.kernel import build, guest_linux
from retinue.agent.kernel.core import frames
from retinue.agent.kernel.core.frames import Start
from retinue.agent.runtime.tasks import Tasks
from retinue.agent.vm import channels
from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.core.machine import CONTROL, stream
from retinue.agent.vm.kernel import VmKernel
from retinue.agent.vm.machines import sockets_of
from tests.integration.agent.vm.guests import code_of, machines
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.integration.agent.vm.conftest import Vms

    Guest = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(path: Path, guest: Guest) -> AsyncIterator[None]:
    """A guest that does as it likes at one of its ports."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await guest(reader, writer)
        writer.close()

    async with await asyncio.start_unix_server(serve, str(path)):
        yield


@pytest.mark.parametrize("said", [b"R" + bytes(8), b"R", b"", b"\xff" * 70_000])
async def test_a_guest_that_refuses_streams_is_not_asked_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(channels, "STREAM_TIMEOUT", 0.5)
    asked = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readexactly(guest_frames.GREETING.size)
        writer.write(said)

    async with listening(tmp_path / stream(0), refuse):
        streams = channels.Streams(tmp_path)
        with pytest.raises(channels.GuestError, match="does not take a connection"):
            await streams.open()
    assert asked <= 6


async def test_a_guest_that_floods_its_channel_is_given_up(tmp_path: Path) -> None:
    flood = (guest_frames.HEADER.pack(b"A", 8) + b"none\0\0\0\0") * 10_000

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(flood)
            await writer.drain()

    async with listening(tmp_path / "control", answer):
        with pytest.raises(channels.GuestError, match="not asked"):
            await channels.ask(tmp_path / "control", guest_frames.GO)


@pytest.mark.parametrize(
    "said",
    [
        frames.HEADER.pack(frames.EXITED, 1) + b"x",
        frames.HEADER.pack(frames.EXITED, 4) + b"\xff\xff\xff\xff",
        frames.HEADER.pack(frames.TAKEN, 0),
        frames.HEADER.pack(frames.TAKEN, 4) + b"\xff\xff\xff\xff",
        frames.HEADER.pack(frames.OUTPUT, 0xFFFFFFFF),
        frames.HEADER.pack(b"\0", 3) + b"\xff\xfe\xfd",
    ],
)
async def test_frames_of_a_helper_that_make_no_sense_end_its_command_only(tmp_path: Path, said: bytes) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    async with listening(tmp_path / "s", answer):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))

        async def ended() -> None:
            """Nothing is left."""

        session = Attachment(ExecStream(SocketChannel(reader, writer), ended, {}))
        with pytest.raises(AttachmentLostError):
            async for _ in session.events():
                pass
        await session.close()


async def test_a_guest_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(tmp_path / "control", silent):
        with pytest.raises(channels.GuestError, match="does not answer within"):
            await channels.ask(tmp_path / "control", guest_frames.GO, seconds=0.2)


async def test_an_answer_without_an_end_is_given_up(tmp_path: Path) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(guest_frames.GREETING.size))
        while True:
            writer.write(frames.frame(frames.OUTPUT, b"x" * 60_000) + frames.frame(frames.ERRORS, b"x"))
            await writer.drain()

    nothing: Any = None
    async with listening(tmp_path / stream(0), flood):
        reached = VmKernel(nothing, True, channels.Streams(tmp_path), Tasks(), lambda: "")
        with pytest.raises(KernelRuntimeError, match="too great a length"):
            await reached.look_at_app("web")


async def test_no_link_of_a_machine_leads_to_another_socket(tmp_path: Path) -> None:
    """QEMU makes the sockets, in a directory of its own."""
    asked = 0

    async def other(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1

    async with listening(tmp_path / "other", other):
        for name in ("control", stream(0)):
            (tmp_path / name).symlink_to(tmp_path / "other")
        with pytest.raises(ConnectionRefusedError):
            await channels.ask(tmp_path / "control", guest_frames.GO)
        with pytest.raises(ConnectionRefusedError):
            await channels.wait_booted(tmp_path / "control")
        with pytest.raises(NotRunningError):
            await channels.Streams(tmp_path).open()
    assert asked == 0


FILES = """
cd ~ && mkdir deep && echo inside > file && ln file hard && ln -s /etc/shadow link && ln -s ../../.. up
mknod device c 1 5 2>/dev/null && exit 2
ln /etc/hostname stolen 2>/dev/null && exit 3
seq 300 | sed 's,^,deep/,' | xargs touch
"""
FULL = "head -c 1000000000 /dev/zero > /tmp/full 2>/dev/null; status=$?; rm /tmp/full; exit $status"
BOMB = "bomb() { bomb | bomb & }; bomb; sleep 1000"


async def test_what_a_guest_does_stays_inside(vms: Vms, monkeypatch: pytest.MonkeyPatch) -> None:
    await vms.open(tasks=100)
    runtime = await vms.held(vms.spec("k", "sh", "-c", "until [ -e ~/go ]; do sleep 0.1; done; echo went; sleep 1000"))
    await runtime.start("k.1")
    kernel = runtime.kernel("k.1")
    work = vms.place.directory / "scratch/k.1"
    # The disk of the guest is full: that hurts nothing but itself.
    assert await code_of(kernel, FULL) == 1
    assert await code_of(kernel, FILES) == 0
    uid = work.stat().st_uid
    found = {entry.name: entry.lstat() for entry in work.iterdir()}
    assert {status.st_uid for status in found.values()} == {uid}
    assert found["file"].st_ino == found["hard"].st_ino
    assert {name for name, status in found.items() if stat.S_ISLNK(status.st_mode)} == {"link", "up"}
    assert not {"device", "stolen"} & found.keys()
    assert len(list((work / "deep").iterdir())) == 300
    # A pump that is killed is replaced: what is printed afterwards arrives.
    killed, file = [], str(vms.place.directory / "state/vm/attempts/k.1/output.log")
    for entry in PROC.iterdir():
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text().startswith("pump") and file in map(os.readlink, (entry / "fd").iterdir()):
                killed.append(int(entry.name))
                os.kill(killed[-1], signal.SIGKILL)
    assert killed
    (work / "go").touch()
    assert await vms.until_printed("k.1", "went\n") == "went\n"
    # Processes multiply in it without end, and then it stands still: it answers nothing, says so,
    # and is killed like any other.
    bomb = Attachment(await kernel.exec())
    await bomb.start(Start(("sh", "-c", BOMB)))
    monkeypatch.setattr(channels, "STREAM_TIMEOUT", 0.5)
    (qemu,) = machines(vms, "k.1")
    # As if it did so by itself.
    monkeypatch.setattr(freezer, "is_stopped", lambda _process: False)
    os.kill(qemu, signal.SIGSTOP)
    with pytest.raises(channels.GuestError, match="does not take a connection"):
        await kernel.exec()
    assert runtime.observe()["k.1"].phase is Phase.RUNNING
    await runtime.stop("k.1", 30)
    await runtime.kill("k.1")
    ended = await vms.until("k.1", Phase.EXITED)
    assert (ended.reason, ended.exit_code) == ("STOPPED", None), ended
    await bomb.close()
    await runtime.remove("k.1")
    assert not vms.left()


FLOODED = 4
"""Streams that the guest below floods."""
FLOODS = """
#define main guest_main
#include "guest.c"
#undef main

/* Writes what makes no sense to one of the ports, from the release of the command on. */
static void *flood(void *which)
{
	static unsigned char junk[65536];
	size_t number = (size_t)which;

	memset(junk, 0xff, sizeof junk);
	while (__atomic_load_n(&command, __ATOMIC_SEQ_CST) == 0)
		usleep(10000);
	for (;;) {
		int ports[] = {output, status, control, STDERR_FILENO};

		if (write(number < 4 ? ports[number] : streams[number - 4].port, junk, sizeof junk) <= 0)
			usleep(1000);
	}
	return which;
}

int main(void)
{
	pthread_t thread;
	size_t number;

	for (number = 0; number < 4 + FLOODED; number++)
		pthread_create(&thread, NULL, flood, (void *)number);
	return guest_main();
}
"""


def build_flooding(directory: Path) -> Path:
    """The first process of a guest that floods all that the agent listens to."""
    source, program = directory / "floods.c", directory / "floods"
    source.write_text(FLOODS)
    includes = f"-I{build.source_of(build.GUEST).parent}"
    words = ["gcc", "-static", "-pthread", "-Os", f"-DFLOODED={FLOODED}", includes, "-o", str(program), str(source)]
    subprocess.run(words, check=True)
    return program


def resident() -> int:
    """Bytes of memory of this process, which is the agent here."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_a_guest_that_floods_all_its_ports(vms: Vms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = await asyncio.to_thread(build_flooding, tmp_path)
    monkeypatch.setattr(
        guest_linux, "build", lambda cache, name: program if name == build.GUEST else build.build(cache, name)
    )
    monkeypatch.setattr(guest_linux, "store", lambda name, content, _cache: build.store(name, content, tmp_path))
    await vms.open(output_limit=1 << 20)
    runtime = await vms.held(vms.spec("k", "sleep", "1000"))
    await runtime.start("k.1")
    kernel, output = runtime.kernel("k.1"), runtime.output("k.1")
    await eventually(lambda: output.size() > 8 << 20)
    gc.collect()
    before = resident()
    monkeypatch.setattr(channels, "STREAM_TIMEOUT", 2.0)
    for _ in range(FLOODED):
        # All that it answers to a caller may come before the first of its junk.
        with contextlib.suppress(KernelRuntimeError):
            assert await code_of(kernel, "exit 3") == 3
    control = sockets_of(vms.options(), "k.1") / CONTROL
    with contextlib.suppress(channels.GuestError):
        await channels.ask(control, guest_frames.GO)
    # What it does not flood works as before.
    monkeypatch.setattr(channels, "STREAM_TIMEOUT", NEVER)
    assert await code_of(kernel, "exit 3") == 3
    assert runtime.observe()["k.1"].phase is Phase.RUNNING
    await runtime.stop("k.1", 30)
    await runtime.kill("k.1")
    ended = await vms.until("k.1", Phase.EXITED)
    assert (ended.reason, ended.exit_code) == ("STOPPED", None), ended
    gc.collect()
    # No channel holds more than a frame or two of 64 KiB. Some megabytes come and go with what this process does else;
    # what is kept of a flood would be much more.
    assert resident() - before < 32 << 20
    files = [
        path.stat().st_blocks * 512 for path in (vms.place.directory / "state/vm/attempts/k.1").rglob("output.log")
    ]
    assert len(files) == 3
    assert sum(files) < 4 << 20
    await runtime.remove("k.1")
    assert not vms.left()
