"""The second run: tests that failed run once more, each alone, after all others; with their whole file if it was the
teardown that failed.

`--second-run FILE` turns it on. A test that fails twice fails the run. A test that passes the second time is unstable:
its outcome is `unstable`, the report of its failure is printed, and FILE keeps its name. FILE belongs to all stages of
one run, so more than `MAX_UNSTABLE` of all stages fail the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.terminal import TerminalReporter

MAX_UNSTABLE = 3
# A run with more failures than this is broken, and not unlucky.
MAX_REPEATED = 12
_TAIL_LINES = 400
_FAILED_CATEGORIES = ("failed", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--second-run",
        metavar="FILE",
        type=Path,
        help="run failed tests once more, each alone, after the others; FILE keeps the unstable tests of all stages",
    )


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--second-run")
    # Workers report to the process that started them.
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondRun(config, file), "second-run")


@dataclass(slots=True)
class Repetition:
    """The second outcome of a failed test, with the end of its output."""

    passed: bool
    output: str


@dataclass(slots=True, eq=False)  # pytest keeps its plugins in sets
class SecondRun:
    """Collects the failures of a run, repeats them, and settles what they count as."""

    config: pytest.Config
    file: Path
    failures: dict[str, list[pytest.TestReport]] = field(default_factory=dict)
    repetitions: dict[str, Repetition] = field(default_factory=dict)
    refused: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not hasattr(report, "wasxfail"):
            self.failures.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        result = yield
        if 0 < len(self.failures) <= MAX_REPEATED and not self.config.option.collectonly:
            for test in self.failures:
                self._say(f"second run: {test}")
                self.repetitions[test] = self._repeat(test)
                self._say("    passed" if self.repetitions[test].passed else "    failed")
            self._settle(session)
        return result

    def _repeat(self, test: str) -> Repetition:
        # What fails after a test may be that of a fixture which all tests of the file share.
        shared = any(report.when == "teardown" for report in self.failures[test])
        target = test.partition("::")[0] if shared else test
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-v", target]
        # The child is a run of its own, and no worker of this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
        done = subprocess.run(
            command,
            cwd=self.config.rootpath,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        lines = done.stdout.splitlines()
        # One that is skipped has not passed.
        passed = done.returncode == 0 and bool(lines) and " passed" in lines[-1]
        return Repetition(passed, "\n".join(lines[-_TAIL_LINES:]))

    def _settle(self, session: pytest.Session) -> None:
        unstable = [test for test, repetition in self.repetitions.items() if repetition.passed]
        before = self.file.read_text().splitlines() if self.file.exists() else []
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{test}\n" for test in [*before, *unstable]))
        self.refused = len(before) + len(unstable) > MAX_UNSTABLE
        if self.refused:
            return
        stats = self._terminal.stats
        for test in unstable:
            session.testsfailed -= len(self.failures[test])
            for category in _FAILED_CATEGORIES:
                kept = [report for report in stats.pop(category, []) if report.nodeid != test]
                if kept:
                    stats[category] = kept
            # What its other phases count as (a failed teardown follows a call that passed) would count it twice.
            stats["passed"] = [report for report in stats.get("passed", []) if report.nodeid != test]
            stats.setdefault("unstable", []).append(self.failures[test][0])

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        unstable = {test: repetition for test, repetition in self.repetitions.items() if repetition.passed}
        if len(self.failures) > MAX_REPEATED:
            terminalreporter.section("second run")
            terminalreporter.write_line(f"{len(self.failures)} tests failed, so none was repeated.")
        for test, repetition in self.repetitions.items():
            if not repetition.passed:
                terminalreporter.section(f"second failure of {test}", "_")
                terminalreporter.write_line(repetition.output)
        # Failures that stand are printed by pytest itself.
        for test in {} if self.refused else unstable:
            for report in self.failures[test]:
                terminalreporter.section(f"first failure of {test} ({report.when})", "_")
                terminalreporter.write_line(report.longreprtext)
                for title, content in report.sections:
                    terminalreporter.section(title, "-")
                    terminalreporter.write_line(content)
        earlier = self.file.read_text().splitlines() if self.file.exists() else []
        if unstable or self.repetitions:
            terminalreporter.section("second run")
            for test, repetition in self.repetitions.items():
                phases = " and ".join(sorted({str(report.when) for report in self.failures[test]}))
                second = "passed" if repetition.passed else "failed"
                terminalreporter.write_line(f"first: failed in {phases}    second: {second}    {test}")
        if self.refused:
            terminalreporter.write_line(
                f"{len(earlier)} tests of this run are unstable, and at most {MAX_UNSTABLE} may be: "
                f"{', '.join(earlier)}",
                red=True,
            )

    @property
    def _terminal(self) -> Any:
        return self.config.pluginmanager.get_plugin("terminalreporter")

    def _say(self, line: str) -> None:
        self._terminal.ensure_newline()
        self._terminal.write_line(line)
