"""Machines without their agent, and machines that fail: nothing is lost, and each end has its reason."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import NotRunningError, PausedError
from retinue.agent.host.freezer import STOPPED
from retinue.agent.kernel.guest_linux import find
from retinue.agent.vm import accelerator, channels, starting
from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.core.machine import CONTROL, STREAMS
from retinue.agent.vm.machines import Machines, Start, Started, sockets_of
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.vm.guests import machines
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.integration.agent.vm.conftest import Vms


async def test_a_machine_continues_without_its_agent(vms: Vms) -> None:
    runtime = await vms.started(
        vms.spec("k", "sh", "-c", "echo before; until [ -e ~/go ]; do sleep 0.1; done; echo after; exit 7")
    )
    work = vms.place.directory / "scratch/k.1"
    await vms.until_printed("k.1", "before\n")
    await runtime.close()
    vms.current = None
    (work / "go").write_text("\n")
    await eventually(lambda: not machines(vms, "k.1"))
    runtime = await vms.open()
    ended = await vms.until("k.1", Phase.EXITED)
    assert (ended.reason, ended.exit_code, vms.printed("k.1")) == ("EXITED", 7, "before\nafter\n"), ended
    await runtime.remove("k.1")
    assert not vms.left()


@pytest.mark.parametrize("is_started", [False, True])
async def test_an_agent_that_dies_while_a_machine_boots_ends_it(
    vms: Vms, monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:
    cancelled, start = threading.Event(), Machines.start

    def started(machines: Machines, wanted: Start) -> Started:
        made = start(machines, wanted)
        assert is_started or cancelled.wait(NEVER)
        return made

    monkeypatch.setattr(Machines, "start", started)
    runtime = await vms.open()
    await runtime.prepare(vms.spec("k", "true"), HOSTS)
    await eventually(lambda: bool(machines(vms, "k.1")))
    opening = asyncio.create_task(vms.open())
    # The former process is about to end, and waits for the thread that starts the machine.
    await asyncio.sleep(0)
    cancelled.set()
    runtime = await opening
    failed = await vms.until("k.1", Phase.FAILED)
    assert (failed.reason, machines(vms, "k.1")) == ("START_FAILED", [])
    await runtime.remove("k.1")
    assert not vms.left()


def lose_records(vms: Vms, copies: str) -> None:
    records = vms.place.directory / "state/vm/attempts"
    shutil.rmtree(records / "k.1")
    if copies == "copies lost":
        shutil.rmtree(records.with_name("attempts.copies"))


@pytest.mark.parametrize("copies", ["copies kept", "copies lost"])
async def test_a_machine_without_its_record_is_held_or_runs_as_before(vms: Vms, copies: str) -> None:
    runtime = await vms.held(vms.spec("k", "sh", "-c", "echo began; sleep 1000"))
    await runtime.close()
    lose_records(vms, copies)
    runtime = await vms.open()
    held = await vms.until("k.1", Phase.CREATED, Phase.RUNNING)
    # A command that went before its gang would be one that was not allowed.
    assert held.phase is Phase.CREATED
    assert not vms.printed("k.1")
    await runtime.start("k.1")
    # The file of what it printed goes with the record, so it is asked for nothing more.
    await eventually(lambda: runtime.observe()["k.1"].phase is Phase.RUNNING)
    await runtime.close()
    lose_records(vms, copies)
    runtime = await vms.open()
    running = await vms.until("k.1", Phase.CREATED, Phase.RUNNING)
    assert (running.phase, running.rebuilt) == (Phase.RUNNING, copies == "copies lost")
    assert machines(vms, "k.1")
    await runtime.stop("k.1", 0)
    await runtime.kill("k.1")
    assert (await vms.until("k.1", Phase.EXITED)).reason == "STOPPED"
    await runtime.remove("k.1")
    assert not vms.left()


async def test_a_guest_that_cannot_start_its_command_is_ended(vms: Vms, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(starting, "boot", hang)
    runtime = await vms.open()
    await runtime.prepare(vms.spec("k", "true"), HOSTS)
    await eventually(lambda: bool(runtime.kernel("k.1").fence_target()))
    await runtime.close()
    # All that is left is a machine that never received its specification.
    lose_records(vms, "copies lost")
    runtime = await vms.open()
    await vms.until("k.1", Phase.CREATED)
    await runtime.start("k.1")
    ended = await vms.until("k.1", Phase.EXITED, Phase.FAILED)
    assert (ended.phase, ended.reason, ended.exit_code) == (Phase.EXITED, "GUEST_FAILED", None), ended
    assert "could not start its command" in ended.message
    await runtime.remove("k.1")
    assert not vms.left()


async def test_a_guest_that_does_not_answer_is_asked_again(vms: Vms, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = await vms.held(vms.spec("k", "sh", "-c", "exit 5"))
    ask, missed = channels.ask, list[bytes]()

    async def answers_late(path: Path, kind: bytes, fields: Iterable[bytes]) -> None:
        if len(missed) < 2:
            missed.append(kind)
            raise channels.GuestError("the guest does not answer")
        await ask(path, kind, fields)

    monkeypatch.setattr(channels, "ask", answers_late)
    await runtime.start("k.1")
    ended = await vms.until("k.1", Phase.EXITED)
    assert (ended.reason, ended.exit_code, missed) == ("EXITED", 5, [guest_frames.GO] * 2), ended
    await runtime.remove("k.1")
    assert not vms.left()


async def test_a_start_that_is_stopped_does_not_boot(vms: Vms, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, resume, booted, start = threading.Event(), threading.Event(), list[str](), Machines.start

    def slow(machines: Machines, wanted: Start) -> Started:
        entered.set()
        assert resume.wait(NEVER)
        return start(machines, wanted)

    async def boot(*_: object) -> None:
        booted.append("k.1")

    monkeypatch.setattr(Machines, "start", slow)
    monkeypatch.setattr(starting, "boot", boot)
    runtime = await vms.open()
    await runtime.prepare(vms.spec("k", "true"), HOSTS)
    await asyncio.to_thread(entered.wait, NEVER)
    stopping = asyncio.create_task(runtime.stop("k.1", 30))
    # It waits for the thread.
    await asyncio.sleep(0)
    resume.set()
    await stopping
    stopped = await vms.until("k.1", Phase.EXITED, Phase.FAILED)
    assert (stopped.phase, stopped.reason, booted) == (Phase.EXITED, "STOPPED", []), stopped
    await runtime.remove("k.1")
    assert not vms.left()


async def test_machines_that_boot_or_wait_for_that_are_stopped_at_once(vms: Vms) -> None:
    runtime = await vms.open(starts=1)
    for name in ("boots", "waits"):
        # Neither is waited for: other kernels are created meanwhile.
        await runtime.prepare(vms.spec(name, "true"), HOSTS)
        assert runtime.observe()[f"{name}.1"].phase is Phase.CREATING
    await eventually(lambda: runtime.kernel("boots.1").fence_target())
    for name in ("waits", "boots"):
        await runtime.stop(f"{name}.1", 30)
        stopped = await vms.until(f"{name}.1", Phase.EXITED, Phase.FAILED, Phase.CREATED)
        assert (stopped.phase, stopped.reason) == (Phase.EXITED, "STOPPED"), stopped
        await runtime.remove(f"{name}.1")
    assert not vms.left()


FILL = """
head -c 60000000 /dev/zero > /dev/shm/all && head -c 100000000 /dev/zero > ~/file && cat ~/file > /dev/null
yes 0123456789 | head -c 8000000
echo; rm /dev/shm/all ~/file; echo filled
"""


async def test_memory(vms: Vms) -> None:
    await vms.open(output_limit=1 << 20)
    # All of the guest's memory and the node's cache are used, and the node ends nothing for it.
    again = "(tail /dev/zero); until [ -e go ]; do sleep 0.1; done; exec tail /dev/zero"
    wanted = vms.spec("k", "sh", "-c", FILL + again)
    runtime = await vms.held(wanted)
    await runtime.start("k.1")
    # A child is killed first, and the command goes on.
    await eventually(lambda: runtime.observe()["k.1"].memory_kills == 1)
    assert runtime.observe()["k.1"].phase is Phase.RUNNING
    (vms.place.directory / "scratch" / "k.1" / "go").touch()
    ended = await vms.until("k.1", Phase.EXITED)
    assert (ended.reason, ended.exit_code, ended.memory_kills) == ("OOM_KILLED", 137, 2), ended
    assert "of its virtual machine" in ended.message, ended
    tail = await asyncio.to_thread(runtime.output("k.1").tail, 40)
    assert "filled" in tail, tail
    # What was printed is bounded, and keeps its offsets.
    file = vms.place.directory / "state/vm/attempts/k.1/output.log"
    assert ended.log_size >= 8_000_000
    assert file.stat().st_blocks * 512 < 2 << 20
    await runtime.remove("k.1")
    assert not vms.left()


async def test_streams_are_bounded_and_come_back(vms: Vms) -> None:
    runtime = await vms.held(vms.spec("k"))
    await runtime.start("k.1")
    kernel = runtime.kernel("k.1")
    wires = [await kernel.exec() for _ in range(STREAMS)]
    with pytest.raises(channels.GuestError, match="24 connections at a time"):
        await kernel.exec()
    for wire in wires:
        await wire.channel.close()
    await asyncio.gather(*(wire.ended() for wire in wires))
    # None of them is lost, and none has words of a former caller.
    again = [await kernel.exec() for _ in range(STREAMS)]
    for wire in again:
        await wire.channel.close()
    await asyncio.gather(*(wire.ended() for wire in again))
    # A machine that ends by itself was not killed.
    assert await ended_by(vms, signal.SIGTERM) == "GUEST_FAILED"


async def ended_by(vms: Vms, number: signal.Signals) -> str:
    """Sends QEMU a signal, and removes its attempt; returns why that ended."""
    runtime = vms.current
    assert runtime is not None
    (qemu,) = machines(vms, "k.1")
    os.kill(qemu, number)
    ended = await vms.until("k.1", Phase.EXITED)
    assert ended.exit_code is None, ended
    with pytest.raises(NotRunningError):
        await runtime.kernel("k.1").exec()
    await runtime.remove("k.1")
    assert not vms.left()
    return ended.reason


async def test_a_guest_answers_an_agent_that_comes_back_at_once(vms: Vms) -> None:
    runtime = await vms.held(vms.spec("k"))
    control = sockets_of(vms.options(), "k.1") / CONTROL
    for _ in range(1000):
        _, writer = await asyncio.open_unix_connection(str(control))
        writer.transport.abort()
        # The guest may hear the question before it hears that its agent is back.
        await channels.ask(control, guest_frames.SERVE)
    await runtime.start("k.1")
    assert await ended_by(vms, signal.SIGKILL) == "KILLED"


@pytest.mark.parametrize(
    "said",
    [b"", b"A", b"Z" * 5, b"A\xff\xff\xff\xff", b"A\0\0\0\x03abc", b"A\0\0\0\x08" + b"\xff" * 8, b"B\0\0\0\x01x" * 9],
)
async def test_a_guest_that_sends_nonsense_costs_its_channel_only(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "control"

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    server = await asyncio.start_unix_server(answer, str(path))
    async with server:
        with pytest.raises((channels.GuestError, ConnectionResetError)):
            await channels.ask(path, guest_frames.GO, seconds=NEVER)


async def test_an_accelerator_is_tried_once(tmp_path: Path) -> None:
    linux = await asyncio.to_thread(find)
    tcg, none = ("-accel", "tcg", "-cpu", "max"), ("-accel", "none")
    assert await accelerator.works(linux, 60_000, 60_000, tmp_path, tcg, NEVER)
    # What is known is not tried again: no machine could boot with this.
    assert await accelerator.works(linux, 60_000, 60_000, tmp_path, none)
    await asyncio.to_thread(shutil.rmtree, tmp_path)
    assert not await accelerator.works(linux, 60_000, 60_000, tmp_path, none)


async def test_a_stopped_machine_is_said_to_be_and_ends(vms: Vms) -> None:
    """Nothing in it answers; once it is asked to end it runs, and its command has its grace."""
    script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done"
    runtime = await vms.started(vms.spec("k", "sh", "-c", script))
    await vms.until_printed("k.1", "ready")
    (machine,) = machines(vms, "k.1")
    os.kill(machine, signal.SIGSTOP)
    try:
        pause = await eventually(lambda: runtime.observe()["k.1"].pause)
        assert pause is not None
        assert pause.message == STOPPED
        with pytest.raises(PausedError, match=f"^the kernel is paused: {STOPPED}$"):
            await runtime.kernel("k.1").exec()
        with pytest.raises(PausedError):
            await runtime.kernel("k.1").connect(7000, ("127.0.0.1",))
        await runtime.stop("k.1", NEVER)
        observed = await vms.until("k.1", Phase.EXITED)
        assert (observed.exit_code, observed.pause) == (5, None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine, signal.SIGCONT)
    await runtime.remove("k.1")
