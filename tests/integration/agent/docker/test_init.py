"""The first process of containers, run as it is: barrier, signals, codes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import TYPE_CHECKING, cast

import pytest

from retinue.agent.docker.barrier import bar, open_barrier, outcome
from retinue.agent.host.seccomp import build_container_filter
from retinue.agent.kernel import build as building
from retinue.agent.kernel.build import BuildError, build, built_path, source_of
from retinue.agent.kernel.core.signals import MEANT, Delivery, Target
from tests.integration.agent.docker.engine import install
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., "Run"]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    install()
    return build(tmp_path_factory.mktemp("cache"))


class Run:
    """One run of the program, its barrier and its output."""

    def __init__(self, program: Path, directory: Path, *command: str, start: str = ".") -> None:
        filter_file = directory / "filter"
        filter_file.write_bytes(build_container_filter())
        self.barrier, self.output = directory / "barrier", directory / "output"
        os.mkfifo(self.barrier)
        self.output.touch()
        arguments = [str(program), str(self.barrier), str(self.output), str(filter_file), start, "0", *command]
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=os.environ | {"GREETING": "hello"})

    async def ready(self) -> int:
        """Waits until it is at its barrier; the writing end of that."""
        descriptors: list[int] = []

        def opened() -> bool:
            try:
                descriptors.append(os.open(self.barrier, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                return False
            return True

        await eventually(opened)
        return descriptors[0]

    async def release(self) -> None:
        descriptor = await self.ready()
        os.write(descriptor, b"\n")
        os.close(descriptor)

    async def printed(self, text: str) -> None:
        await eventually(lambda: self.output.read_text() == text)


@pytest.fixture
def runs(program: Path, tmp_path: Path) -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


@pytest.fixture
def start(runs: list[Run], program: Path, tmp_path: Path) -> Start:
    def start(*command: str) -> Run:
        runs.append(Run(program, tmp_path, *command))
        return runs[-1]

    return start


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (("sh", "-c", "echo $GREETING; echo err >&2; exit 5"), 5, "hello\nerr\n"),
        (("sh", "-c", "kill -SEGV $$"), 139, ""),
        (("no-such-command", "x"), 127, "init: no-such-command: No such file or directory\n"),
        (("/etc/passwd",), 126, "init: /etc/passwd: Permission denied\n"),
        (("sh", "-c", "cat; wc -c </proc/self/fd/0; exit 0"), 0, "0\n"),
    ],
)
async def test_codes(start: Start, command: tuple[str, ...], code: int, text: str) -> None:
    run = start(*command)
    await run.release()
    assert run.process.wait(NEVER) == code
    assert run.output.read_text() == text


def elf(machine: int) -> bytes:
    """The begin of a program for a machine, by its number in ELF."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + machine.to_bytes(2, "little") + bytes(200)


AARCH64, X86_64 = 183, 62
OTHER, NAME = (AARCH64, "aarch64") if os.uname().machine == "x86_64" else (X86_64, "x86_64")
PROGRAMS = {
    "other": (elf(OTHER), 126, f"it is a program for {NAME}, and this machine is {os.uname().machine}"),
    "damaged": (elf(9999), 126, f"it is not a program for this machine, which is {os.uname().machine}"),
    "data": (b"\0\1\2" * 100, 126, "it is not a program"),
    "interpreter": (b"#!/no/such/python3 -u\nprint()\n", 127, "its interpreter is missing: /no/such/python3 -u"),
    # As shells do.
    "text": (b"echo $0 $1\n", 0, None),
    "empty": (b"", 0, None),
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("by_path", [True, False])
async def test_why_a_program_does_not_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by_path: bool
) -> None:
    content, code, words = PROGRAMS[kind]
    file = tmp_path / "hello"
    file.write_bytes(content)
    file.chmod(0o755)
    # What cannot be run is found before, and after it there is no other.
    monkeypatch.setenv("PATH", f"/no/such:{tmp_path}:{os.environ['PATH']}")
    command = str(file) if by_path else "hello"
    run = start(command, "a word")
    await run.release()
    assert run.process.wait(NEVER) == code
    expected = f"init: {command}: {words}\n" if words else f"{file} a word\n" if content else ""
    assert run.output.read_text() == expected


@pytest.mark.parametrize(("command", "code"), [(("true",), 0), (("sh", "-c", "exit 200"), 200), ((), 143)])
async def test_the_exit_code_outlives_the_process(start: Start, command: tuple[str, ...], code: int) -> None:
    run = start(*command)
    os.close(await run.ready())
    assert outcome(run.barrier.parent) is None
    open_barrier(run.barrier.parent, None)
    if not command:
        run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(NEVER) == code
    found = outcome(run.barrier.parent)
    assert found is not None
    assert (found.exit_code, found.memory_kills) == (code, 0)


@pytest.mark.parametrize("released", [True, False])
async def test_a_command_is_released_once_however_often_its_container_starts(
    start: Start, tmp_path: Path, released: bool
) -> None:
    run = start("sh", "-c", "echo ran; sleep 1000")
    os.close(await run.ready())
    if released:
        open_barrier(tmp_path, None)
        await run.printed("ran\n")
    else:
        bar(tmp_path)
    run.process.kill()
    run.process.wait(NEVER)
    words = [word if isinstance(word, str) else os.fsdecode(word) for word in cast("list[str]", run.process.args)]
    again = await asyncio.create_subprocess_exec(*words)
    assert await again.wait() == 137
    assert run.output.read_text() == ("ran\n" if released else "")


async def test_gate(start: Start) -> None:
    run = start("echo", "out")
    for _ in range(3):
        # A process that opens it and goes away without a word does not open it.
        os.close(await run.ready())
    assert run.process.poll() is None
    assert run.output.read_text() == ""
    await run.release()
    assert run.process.wait(NEVER) == 0
    assert run.output.read_text() == "out\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("released", [True, False])
async def test_ends_on_signals_without_a_command(start: Start, number: signal.Signals, released: bool) -> None:
    run = start()
    if released:
        await run.release()
    else:
        os.close(await run.ready())
    run.process.send_signal(signal.SIGUSR1)
    run.process.send_signal(number)
    assert run.process.wait(NEVER) == 128 + number


async def test_signals_are_passed_on(start: Start) -> None:
    run = start(
        "sh", "-c", "trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; echo on; while :; do sleep 0.02; done"
    )
    await run.release()
    await run.printed("on\n")
    run.process.send_signal(signal.SIGUSR1)
    await run.printed("on\nusr1\n")
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(NEVER) == 3


async def test_command_has_a_session_of_its_own_and_no_blocked_signals(start: Start) -> None:
    # Not into a pipe: the shell would have it open too while `ls` looks.
    run = start("sh", "-c", "grep SigBlk /proc/self/status; cut -d' ' -f6 /proc/$$/stat; echo $$; ls /proc/$$/fd; true")
    await run.release()
    assert run.process.wait(NEVER) == 0
    blocked, session, pid, *descriptors = run.output.read_text().splitlines()
    assert blocked == "SigBlk:\t0000000000000000"
    assert session == pid
    assert descriptors == ["0", "1", "2"]


def test_missing_files_and_arguments(program: Path, tmp_path: Path) -> None:
    for arguments in ([], ["barrier"], [tmp_path / "none", tmp_path / "none", "true"]):
        done = subprocess.run([program, *arguments], capture_output=True, timeout=NEVER, check=False)
        assert done.returncode == 126
        assert done.stderr.startswith((b"usage:", b"init: cannot open"))
    for content in (None, b"", b"cut off", bytes(8), bytes(8 * 4097)):
        if content is not None:
            (tmp_path / "filter").write_bytes(content)
        words: list[Path | str] = [tmp_path / "none", tmp_path / "none", tmp_path / "filter", ".", "0", "true"]
        done = subprocess.run([program, *words], capture_output=True, timeout=NEVER, check=False)
        assert (done.returncode, done.stderr[:40]) == (126, b"init: cannot set the filter of system calls"[:40])


def test_built_once(program: Path) -> None:
    assert built_path(program.parent) == program
    before = program.stat()
    assert build(program.parent) == program
    assert program.stat().st_mtime_ns == before.st_mtime_ns
    assert [entry.name for entry in program.parent.iterdir()] == [program.name]
    # Static: it names no loader that an image would have to have.
    assert b"/ld-" not in program.read_bytes()[:4096]


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(BuildError, match="no C compiler"):
        build(tmp_path / "cache")


CHILD = "trap 'echo child; exit' TERM USR1; echo on; while :; do sleep 0.02; done"


async def test_all_that_a_command_runs_is_asked_to_end_and_has_the_time_for_it(start: Start) -> None:
    """A shell that waits for what it runs ends at once; its child does not, nor does a child in another group."""
    trainer = "sh -c \"trap 'sleep 0.3; echo saved; exit' TERM; echo on; while :; do sleep 0.02; done\" 2>/dev/null"
    run = start("sh", "-c", f"timeout 1000 {trainer}; true")
    await run.release()
    await run.printed("on\n")
    run.process.send_signal(Delivery(signal.SIGTERM, Target.ALL).code)
    assert run.process.wait(NEVER) == 128 + signal.SIGTERM
    assert run.output.read_text() == "on\nsaved\n"


async def test_signals_for_what_a_command_has_started(start: Start) -> None:
    run = start("sh", "-c", f'sh -c "{CHILD}" 2>/dev/null & trap "echo parent" USR1; wait; wait; exit 4')
    await run.release()
    await run.printed("on\n")
    run.process.send_signal(Delivery(signal.SIGUSR1, Target.STARTED).code)
    assert run.process.wait(NEVER) == 4
    assert run.output.read_text() == "on\nchild\n"


async def test_signals_for_what_was_started_are_the_commands_if_that_is_nothing(start: Start) -> None:
    run = start("sh", "-c", "trap 'echo term; exit 3' USR1; echo on; while :; do :; done")
    await run.release()
    await run.printed("on\n")
    run.process.send_signal(Delivery(signal.SIGUSR1, Target.STARTED).code)
    assert run.process.wait(NEVER) == 3


def test_the_order_of_signals_is_that_of_the_program() -> None:
    text = source_of("command").with_suffix(".h").read_text()
    assert f"meant[] = {{{', '.join(one.name for one in MEANT)}}};" in text
