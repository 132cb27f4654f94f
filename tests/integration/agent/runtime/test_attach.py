"""Commands beside a kernel's own: where they are, as whom, what passes, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import NotRunningError, UnknownAttemptError
from retinue.agent.inside.exec_session import AttachmentLostError, Started
from retinue.agent.kernel.core.frames import WINDOW
from tests.integration.agent.runtime.beside import Seen, attached, members, ran, seen
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.agent.runtime.conftest import Contract


async def running(contract: Contract, *command: str, **values: object) -> None:
    await contract.started(contract.spec("k", *(command or ("sleep", "1000")), **values))


async def test_same_as_the_kernels_command(contract: Contract) -> None:
    """Same user, rights, limits, names, network and processes as the command has; and nothing of the agent's."""
    script = """
        env | sort | grep -v -e ^PWD= -e ^SHLVL= -e ^_= -e ^OLDPWD=
        id -u; id -g; id -G; pwd; hostname; ulimit -c; ulimit -n; umask; ls /proc/self/fd
        grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp|SigBlk):' /proc/self/status
        for kind in mnt pid uts ipc net cgroup; do readlink /proc/self/ns/$kind; done
        cat /proc/self/cgroup | sort; cat /etc/hosts
    """
    environment = {"STRANGE": "two\nlines \"$(id)\" 'x'", "e1": "not ours", "LD_PRELOAD": ""}
    await running(contract, "sh", "-c", f"({script}); echo over; sleep 1000", environment=environment)
    own = (await contract.until_printed("k.1", "over\n")).encode()
    found = await ran(contract, "sh", "-c", f"({script}); echo over")
    assert found.started
    assert found.code == 0
    assert found.errors == b""
    assert found.output.decode() == own.decode()
    assert b"e1=not ours" in own
    assert found.output.count(b"\t0000000000000000") >= 5
    result = await ran(contract, "sh", "-c", "echo $MORE; pwd; ps 2>/dev/null; ls /proc", environment={"MORE": "1"}, directory="/tmp")  # fmt: skip  # noqa: S108
    assert result.output.startswith(b"1\n/tmp\n")


async def test_streams_apart_and_codes(contract: Contract) -> None:
    await running(contract)
    result = await ran(contract, "sh", "-c", "cat; echo bad >&2; exit 3", data=b"in\0put\n" * 1000)
    assert (result.output, result.errors, result.code) == (b"in\0put\n" * 1000, b"bad\n", 3)
    assert (await ran(contract, "sh", "-c", "kill -SEGV $$")).code == 128 + signal.SIGSEGV
    missing = await ran(contract, "no-such-command")
    assert (missing.started, missing.code) == (False, 127)
    assert b"no-such-command: No such file" in missing.errors
    assert (await ran(contract, "/etc/hostname")).code == 126
    nowhere = await ran(contract, "true", directory="/nowhere")
    assert (nowhere.started, nowhere.code) == (False, 127)
    assert (
        await ran(contract, "printf", "<%s>", "", "two words", "--", "ü\n")
    ).output.decode() == "<><two words><--><ü\n>"


async def test_terminal(contract: Contract) -> None:
    await running(contract)
    async with attached(contract, "sh", size=(40, 100), environment={"TERM": "xterm", "PS1": "$ "}) as attachment:
        await attachment.write(b"stty size; tty\n")
        first = await seen(attachment, b"/dev/pts/")
        assert b"40 100" in first.output
        await attachment.resize(50, 120)
        await attachment.write(b"stty size\n")
        assert (await seen(attachment, b"50 120")).errors == b""
        interrupts: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: attachment.write(b"\x03"),
            lambda: attachment.signal(signal.SIGINT),
        )
        for interrupt in interrupts:
            # What prints it is what is interrupted: the shell has put it in front by then.
            await attachment.write(b"sh -c \"echo 'fir''st'; exec sleep 1000\"\n")
            await seen(attachment, b"first")
            await interrupt()
        await attachment.write(b"echo 'st''ill' here; stty -echo; exit 7\n")
        last = await seen(attachment)
        assert b"still here" in last.output
        assert last.code == 7
    async with attached(contract, "cat", size=(24, 80)) as attachment:
        await attachment.end_input()
        assert (await seen(attachment)).code == 0


async def test_every_terminal_says_what_it_is(contract: Contract) -> None:
    await running(contract, environment={"FROM": "kernel"})
    said = {}
    for name, environment in (
        ("nobody", {}),
        ("nothing", {"TERM": ""}),
        ("colours", {"COLORTERM": "24bit"}),
        ("caller", {"TERM": "vt100"}),
    ):
        script = ("sh", "-c", 'echo "$TERM,$COLORTERM,$FROM"')
        async with attached(contract, *script, size=(24, 80), environment=environment) as attachment:
            said[name] = (await seen(attachment)).output.strip().decode()
    assert said == {
        "nobody": "xterm-256color,truecolor,kernel",
        "nothing": "xterm-256color,truecolor,kernel",
        "colours": "xterm-256color,24bit,kernel",
        "caller": "vt100,,kernel",
    }
    assert (await ran(contract, "sh", "-c", 'echo "$TERM"')).output == b"\n"


async def test_signals(contract: Contract) -> None:
    await running(contract)
    async with attached(
        contract, "sh", "-c", "trap 'exit 9' USR1; echo on; while :; do sleep 0.02; done"
    ) as attachment:
        await seen(attachment, b"on")
        await attachment.signal(signal.SIGUSR1)
        assert (await seen(attachment)).code == 9
    async with attached(contract, "sleep", "1000") as attachment:
        await attachment.signal(signal.SIGKILL)
        assert (await seen(attachment)).code == 137


async def test_nothing_is_left(contract: Contract) -> None:
    """What a command started ends with it, and what a caller left behind ends by itself, daemons included."""
    await running(contract)
    # The first process, and the command, which it may not have started yet.
    await eventually(lambda: len(members(contract)) == 2)
    before = members(contract)
    daemons = "setsid sleep 1000 & (sleep 1001 &) & trap '' HUP; sleep 1002 & echo on"
    result = await ran(contract, "sh", "-c", daemons)
    assert (result.code, result.output) == (0, b"on\n")
    await eventually(lambda: _same(contract, before))
    for values in ({}, {"size": (24, 80)}):
        async with attached(contract, "sh", "-c", f"{daemons}; wait", **values) as attachment:
            await seen(attachment, b"on")
            # One that starts while this looks may be missed.
            await eventually(lambda: len(members(contract)) > len(before) + 3)
        await eventually(lambda: _same(contract, before))
    # Polite ones get to clean up.
    polite = "trap 'echo bye >bye; exit' HUP; echo on; while :; do sleep 0.02; done"
    async with attached(contract, "sh", "-c", polite) as attachment:
        await seen(attachment, b"on")
    await eventually(lambda: _same(contract, before))
    assert (await ran(contract, "cat", "bye")) == Seen(started=True, output=b"bye\n", code=0, pieces=[4])


def _same(contract: Contract, before: set[int]) -> bool:
    return members(contract) == before


@pytest.mark.parametrize("size", [None, (24, 80)])
async def test_what_leaves_the_command_lives_on_if_the_caller_wants_it(
    contract: Contract, size: tuple[int, int] | None
) -> None:
    await running(contract)
    await eventually(lambda: len(members(contract)) == 2)
    before = members(contract)
    # Its own pipes end with the command: one that has them open would hold up the end.
    leave = "setsid sh -c '>left; exec sleep 1000' </dev/null >/dev/null 2>&1 &"
    daemon = f"rm -f left; {leave} until [ -e left ]; do sleep 0.02; done; echo on"
    result = await ran(contract, "sh", "-c", daemon, size=size, leaves=True)
    assert result.output.strip() == b"on"
    await eventually(lambda: len(members(contract)) == len(before) + 1)
    survivors = members(contract)
    async with attached(contract, "sh", "-c", f"{daemon}; sleep 1001; true", size=size, leaves=True) as attachment:
        await seen(attachment, b"on")
    # The stream has ended: the command has, too, and nothing else.
    await eventually(lambda: len(members(contract)) == len(survivors) + 1)
    assert survivors <= members(contract)


async def test_a_detached_command(contract: Contract) -> None:
    await running(contract)
    await eventually(lambda: len(members(contract)) == 2)
    before = members(contract)
    script = '(echo "$A"; pwd; readlink /proc/$$/fd/0; readlink /proc/$$/fd/1; readlink /proc/$$/fd/2) >here; exec sleep 1000'
    async with attached(contract, "sh", "-c", script, environment={"A": "b"}, detached=True) as attachment:
        assert isinstance(await anext(attachment.events()), Started)
    file, written = contract.place.directory / "scratch/k.1/here", "b\n/home/work\n" + "/dev/null\n" * 3
    await eventually(lambda: file.exists() and file.read_text() == written)
    # Its helper has gone by then.
    await eventually(lambda: len(members(contract)) == len(before) + 1)
    for command, values, code, words in (
        ("no-such-command", {}, 127, b"no-such-command: No such file"),
        ("/etc/hostname", {}, 126, b"Permission denied"),
        ("true", {"directory": "/nowhere"}, 127, b"/nowhere: No such file"),
    ):
        async with attached(contract, command, detached=True, **values) as attachment:
            missing = await seen(attachment)
        assert (missing.started, missing.code) == (False, code)
        assert words in missing.errors


async def test_what_is_said_to_a_command_that_has_ended_takes_nothing_of_it_away(contract: Contract) -> None:
    await running(contract)
    await eventually(lambda: len(members(contract)) == 2)
    before = members(contract)
    async with attached(contract, "sh", "-c", "echo said; echo wrong >&2; echo >over; exit 3") as attachment:
        await eventually((contract.place.directory / "scratch/k.1/over").exists)
        # It ends during the first of these at the latest.
        for _ in range(50):
            await attachment.write(b"x")
            await attachment.resize(40, 100)
        await attachment.end_input()
        result = await seen(attachment)
    assert (result.output, result.errors, result.code) == (b"said\n", b"wrong\n", 3)
    await eventually(lambda: _same(contract, before))


async def test_a_slow_reader_holds_the_command_up(contract: Contract) -> None:
    await running(contract)
    # What the engine holds on its way is its own affair, and bounded too.
    held_up = 16 << 20
    async with attached(contract, "sh", "-c", "yes; true") as attachment:
        await seen(attachment, b"y\n")
        looks: list[tuple[int, bool]] = []

        def stuck() -> bool:
            looks.append(_written(contract))
            return looks[-1][1] and looks[-10:] == looks[-1:] * 10

        await eventually(stuck)
    assert 0 < looks[-1][0] < held_up
    # Unread input delays neither signals nor the end.
    async with attached(contract, "sleep", "1000") as attachment:
        writing = asyncio.create_task(attachment.write(b"x" * 4 * WINDOW))
        await eventually(lambda: attachment._window == 0)  # noqa: SLF001  # it holds the writer up
        assert not writing.done()
        await attachment.signal(signal.SIGTERM)
        assert (await seen(attachment)).code == 128 + signal.SIGTERM
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def _written(contract: Contract) -> tuple[int, bool]:
    """Bytes that `yes` processes of the kernel have written, and whether all of them wait: for a reader, not for a
    processor.
    """
    total, waiting = 0, True
    for pid in members(contract):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "yes\n" or "yes" in Path(f"/proc/{pid}/cmdline").read_text():
                total += int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])
                waiting &= Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")
    return total, waiting


async def test_much_passes_both_ways(contract: Contract) -> None:
    await running(contract)
    data = os.urandom(1 << 20) * 4
    result = await ran(contract, "cat", data=data)
    assert result.output == data
    assert max(result.pieces) <= 32 * 1024


async def test_only_what_runs(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sleep", "1000"))
    with pytest.raises(UnknownAttemptError):
        await backend.kernel("other.1").exec()
    with pytest.raises(NotRunningError):
        await backend.kernel("k.1").exec()
    await backend.start("k.1")
    async with attached(contract, "sleep", "1000") as attachment:
        await backend.kill("k.1")
        # All are killed at once: the command may go before the process that reports it.
        with contextlib.suppress(AttachmentLostError):
            assert (await seen(attachment)).code == 128 + signal.SIGKILL
    await contract.until("k.1", Phase.EXITED)
    with pytest.raises(NotRunningError):
        await backend.kernel("k.1").exec()
