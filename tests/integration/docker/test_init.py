"""The first process of containers, run as it is: gate, signals, codes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.kernel import build as building
from retinue.agent.kernel.build import BuildError, build, built_path
from retinue.agent.process.seccomp import build_container_filter
from tests.integration.agent.waiting import eventually
from tests.integration.docker.engine import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., "Run"]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    install()
    return build(tmp_path_factory.mktemp("cache"))


class Run:
    """One run of the program, its gate and its output."""

    def __init__(self, program: Path, directory: Path, *command: str) -> None:
        filter_file = directory / "filter"
        filter_file.write_bytes(build_container_filter())
        self.gate, self.output = directory / "gate", directory / "output"
        os.mkfifo(self.gate)
        self.output.touch()
        arguments = [str(program), str(self.gate), str(self.output), str(filter_file), "0", *command]
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=os.environ | {"GREETING": "hello"})

    async def ready(self) -> int:
        """Waits until it is at its gate; the writing end of that."""
        descriptors: list[int] = []

        def opened() -> bool:
            try:
                descriptors.append(os.open(self.gate, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                return False
            return True

        await eventually(opened)
        return descriptors[0]

    async def let_go(self) -> None:
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
    await run.let_go()
    assert run.process.wait(10) == code
    assert run.output.read_text() == text


async def test_gate(start: Start) -> None:
    run = start("echo", "out")
    for _ in range(3):
        # A process that opens it and goes away without a word does not open it.
        os.close(await run.ready())
    assert run.process.poll() is None
    assert run.output.read_text() == ""
    await run.let_go()
    assert run.process.wait(10) == 0
    assert run.output.read_text() == "out\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("released", [True, False])
async def test_ends_on_signals_without_a_command(start: Start, number: signal.Signals, released: bool) -> None:
    run = start()
    if released:
        await run.let_go()
    else:
        os.close(await run.ready())
    run.process.send_signal(signal.SIGUSR1)
    run.process.send_signal(number)
    assert run.process.wait(10) == 128 + number


async def test_signals_are_passed_on(start: Start) -> None:
    run = start(
        "sh", "-c", "trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; echo on; while :; do sleep 0.02; done"
    )
    await run.let_go()
    await run.printed("on\n")
    run.process.send_signal(signal.SIGUSR1)
    await run.printed("on\nusr1\n")
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(10) == 3


async def test_command_has_a_session_of_its_own_and_no_blocked_signals(start: Start) -> None:
    run = start(
        "sh", "-c", "grep SigBlk /proc/self/status; cut -d' ' -f6 /proc/$$/stat; echo $$; ls /proc/$$/fd | wc -l"
    )
    await run.let_go()
    assert run.process.wait(10) == 0
    blocked, session, pid, descriptors = run.output.read_text().split("\n")[:4]
    assert blocked == "SigBlk:\t0000000000000000"
    assert session == pid
    assert descriptors == "3"


def test_missing_files_and_arguments(program: Path, tmp_path: Path) -> None:
    for arguments in ([], ["gate"], [tmp_path / "none", tmp_path / "none", "true"]):
        done = subprocess.run([program, *arguments], capture_output=True, timeout=10, check=False)
        assert done.returncode == 126
        assert done.stderr.startswith((b"usage:", b"init: cannot open"))
    for content in (None, b"", b"cut off", bytes(8), bytes(8 * 4097)):
        if content is not None:
            (tmp_path / "filter").write_bytes(content)
        words: list[Path | str] = [tmp_path / "none", tmp_path / "none", tmp_path / "filter", "0", "true"]
        done = subprocess.run([program, *words], capture_output=True, timeout=10, check=False)
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
