"""The first hour of a newcomer, on a machine on which nothing was installed: the commands of the README and of the
tutorial as they stand, and what they print.
"""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.docs.empty_root import CHECKOUT, EmptyRoot, empty_root
from tests.integration.docs.page import Step, steps
from tests.support.eventually import eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial"
PAGES = sorted(TUTORIAL.glob("[0-9]*.md"))
ACTIVATE = f". {CHECKOUT}/.venv/bin/activate\n"
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(slots=True)
class Terminal:
    """A command that runs in a terminal of its own until Ctrl-C."""

    machine: EmptyRoot
    name: str
    commands: str
    directory: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                self.machine.shell(f"echo $$ > {self._pid}\nexec {self.commands}", self.directory),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def _pid(self) -> Path:
        return Path("/root", f"{self.name}.pid")

    @property
    def _output(self) -> Path:
        return self.machine.path(Path("/root", f"{self.name}.log"))

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, step: Step) -> None:
        """Waits until it has printed what a page says; fails when it ends before."""

        def missing() -> str | None:
            ended = self.process.poll() is not None
            found = step.missing(self.output())
            assert found is None or not ended, f"{step.place} ended with {self.process.returncode}:\n{self.output()}"
            return found

        eventually_blocking(missing, lambda found: found is None)

    def interrupt(self) -> int:
        """Ctrl-C; returns its exit code."""
        if self.process.poll() is None:
            # It may have ended since then: a tunnel ends with its session.
            self.machine.type(f"kill -{signal.SIGINT.value} $(cat {self._pid}) || true")
        return self.process.wait()


@dataclass(slots=True)
class Reader:
    """Who types: in a directory, and in other terminals."""

    machine: EmptyRoot
    directory: Path
    terminals: list[Terminal] = field(default_factory=list)

    def follow(self, step: Step) -> None:
        """Runs a step; fails unless it succeeds and prints what it is to print."""
        if step.background:
            name = f"{self.directory.name}-{len(self.terminals)}"
            # The terminal is a shell in which the environment was activated.
            commands = f"bash -c '{ACTIVATE.strip()}; exec {step.commands.strip()}'"
            self.terminals.append(Terminal(self.machine, name, commands, self.directory))
            self.terminals[-1].wait_for(step)
            return
        printed = self.machine.type(ACTIVATE + step.commands, self.directory)
        missing = step.missing(printed)
        assert missing is None, f"{step.place} did not print {missing!r}:\n{printed}"


def blocks() -> list[str]:
    """The blocks of commands of the README, in order."""
    return [step.commands for step in steps(README)]


@pytest.fixture(scope="module")
def machine() -> Iterator[EmptyRoot]:
    """The machine, with what `make install` installs."""
    with Path("/var/lock/retinue-first-hour").open("w") as lock:
        # The cluster has the ports that the pages name, of this machine.
        fcntl.flock(lock, fcntl.LOCK_EX)
        with empty_root(ROOT) as made:
            yield made


@pytest.fixture(scope="module")
def demo(machine: EmptyRoot) -> str:
    """What the README's first command prints, on the empty machine."""
    command, tests = blocks()[0].splitlines()
    # The second one is what runs here.
    assert (command.split("#")[0].strip(), tests.split("#")[0].strip()) == ("make demo", "make test")
    return machine.type(command, CHECKOUT)


@pytest.fixture(scope="module")
def installed(machine: EmptyRoot, demo: str) -> str:
    """What `make install` prints."""
    assert demo
    install, start = blocks()[1].splitlines()
    assert (install, start.split("#")[0].strip()) == ("make install && . .venv/bin/activate", "retinue dev")
    return machine.type(install, CHECKOUT)


@pytest.fixture(scope="module")
def cluster(machine: EmptyRoot, installed: str) -> Iterator[Terminal]:
    """The terminal in which `retinue dev` runs, for all pages."""
    assert installed
    first = steps(PAGES[0])[0]
    assert (first.commands, first.background) == ("retinue dev\n", True)
    machine.type("mkdir /root/work")
    reader = Reader(machine, Path("/root/work"))
    try:
        reader.follow(first)
        yield reader.terminals[0]
    finally:
        for terminal in reader.terminals:
            terminal.interrupt()


def test_the_first_command_is_a_demo(demo: str) -> None:
    assert demo.rstrip().endswith("demo: ok")


def test_make_install_says_what_to_type_next(installed: str) -> None:
    assert [line.strip() for line in installed.splitlines()[-2:]] == [". .venv/bin/activate", "retinue dev"]


def test_the_tour(machine: EmptyRoot, cluster: Terminal) -> None:
    assert cluster.process.poll() is None
    printed = machine.type(ACTIVATE + blocks()[2], CHECKOUT)
    assert "hello from main1" in printed
    for line in ("main1", "sub1", "sub2"):
        assert re.search(rf"\s{line}$", printed, re.MULTILINE), printed


def test_the_tour_from_python(machine: EmptyRoot, cluster: Terminal) -> None:
    assert cluster.process.poll() is None
    (program,) = _PYTHON.findall(README.read_text())
    machine.path(Path("/root/work/tour.py")).write_text(program)
    printed = machine.type(ACTIVATE + "python tour.py", Path("/root/work"))
    assert printed.startswith("main1\n")
    assert "sub2" in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, machine: EmptyRoot, cluster: Terminal) -> None:
    directory = Path("/root", page.stem)
    machine.type(f"mkdir {directory}")
    reader = Reader(machine, directory)
    try:
        for step in steps(page):
            if step.commands != "retinue dev\n":
                reader.follow(step)
    finally:
        for terminal in reversed(reader.terminals):
            terminal.interrupt()
    assert cluster.process.poll() is None


def test_what_is_built_beside_the_first_cluster_is_announced(machine: EmptyRoot, cluster: Terminal) -> None:
    built = {"ssh between kernels: ready", "the web console: ready"}
    lines = eventually_blocking(lambda: set(cluster.output().splitlines()), lambda found: built <= found)
    assert not [line for line in lines if "cannot be built" in line]
    page = machine.type("curl --silent --fail --header 'Host: console.localhost:7442' http://127.0.0.1:7442/")
    assert "<script" in page


def test_ctrl_c_leaves_nothing(machine: EmptyRoot, cluster: Terminal) -> None:
    assert cluster.interrupt() == 0
    assert machine.type("ls -A /run/netns") == ""
    # A copy of PostgreSQL that its user can read is kept for the next one.
    assert machine.type("ls -A /var/lib/retinue | grep -v ^postgresql- || true") == ""
    assert "dev" not in machine.type("cat ~/.config/retinue/contexts.yaml")
    # The first process there waits for no child: those that ended are left in the table.
    named = "grep -lE '^Name:.(retinue|postgres|envoy)' /proc/[0-9]*/status"
    assert machine.type(f"({named} | xargs -r grep -LE '^State:.Z') || true") == ""


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (TUTORIAL / "README.md").read_text()
    assert all(f"]({page.name})" in contents for page in PAGES)
    assert len(PAGES) > 1
