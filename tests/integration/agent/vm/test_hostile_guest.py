"""Guests that mean harm: what they send costs their own channel, and what they do inside stays inside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.host.processes import PROC
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError, Exited, SocketChannel, Wire
from retinue.agent.kernel.core import frames
from retinue.agent.kernel.core.frames import Start
from retinue.agent.vm import channels
from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.core.machine import stream
from tests.eventually import eventually
from tests.integration.agent.vm.conftest import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from retinue.agent.runtime.kernel import Kernel
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
            await channels.ask(tmp_path / "control", guest_frames.GO, seconds=TIMEOUT)


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

        session = Attachment(Wire(SocketChannel(reader, writer), ended, {}))
        with pytest.raises(AttachmentLostError):
            async for _ in session.events():
                pass
        await session.close()


async def code_of(kernel: Kernel, script: str) -> int:
    """Returns the exit code of a command in the guest."""
    session = Attachment(await kernel.exec())
    try:
        await session.start(Start(("sh", "-c", script)))
        async with asyncio.timeout(TIMEOUT):
            async for event in session.events():
                if isinstance(event, Exited):
                    return event.code
    finally:
        await session.close()
    raise AssertionError("it did not exit")


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
    await eventually(lambda: vms.printed("k.1") == "went\n", seconds=TIMEOUT)
    # Processes multiply in it without end, and then it stands still: it answers nothing, says so,
    # and is killed like any other.
    bomb = Attachment(await kernel.exec())
    await bomb.start(Start(("sh", "-c", BOMB)))
    monkeypatch.setattr(channels, "STREAM_TIMEOUT", 0.5)
    (qemu,) = (pid for pid in vms.cgroups().processes("k.1") if (PROC / f"{pid}/comm").read_text().startswith("qemu"))
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
