"""Runs of pytest in which tests fail once, twice, hang or take their worker along."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# In a directory of a run: fails in its first execution only.
ONCE = """
from pathlib import Path

def fails_once(name):
    flag = Path(__file__).with_name(name)
    if not flag.exists():
        flag.touch()
        raise AssertionError(f"{name} is not there yet")
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of pytest in a directory of its own."""

    directory: Path

    def __call__(self, *arguments: str) -> tuple[int, str]:
        (self.directory / "once.py").write_text(ONCE)
        command = [
            sys.executable,
            "-m",
            "pytest",
            f"--rootdir={self.directory}",
            "-c",
            "pytest.ini",
            "-ra",
            "-p",
            "xdist",
        ]
        (self.directory / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            [*command, "-p", "tests.support.second_run", "--second-run", "unstable", *arguments],
            cwd=self.directory,
            env=kept | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def write(self, name: str, code: str) -> None:
        (self.directory / f"{name}.py").write_text(f"from once import fails_once\n{code}")

    def unstable(self) -> list[str]:
        return (self.directory / "unstable").read_text().splitlines()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def closing_line(output: str) -> str:
    return output.rstrip().splitlines()[-1]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_test_that_passes_the_second_time_is_unstable(run: Run, workers: tuple[str, ...]) -> None:
    run.write("test_one", "def test_good(): pass\ndef test_unlucky(): fails_once('luck')")
    code, output = run(*workers)
    assert code == 0, output
    assert "1 passed, 1 unstable in" in closing_line(output)
    assert "AssertionError: luck is not there yet" in output
    assert "first: failed in call    second: passed    test_one.py::test_unlucky" in output
    assert run.unstable() == ["test_one.py::test_unlucky"]


def test_a_test_that_fails_twice_fails_the_run(run: Run) -> None:
    run.write(
        "test_one", "def test_good(): pass\ndef test_bad(): assert 1 == 2\ndef test_unlucky(): fails_once('luck')"
    )
    code, output = run("-n", "2")
    assert code == 1, output
    assert "1 failed, 1 passed, 1 unstable in" in closing_line(output)
    assert "first: failed in call    second: failed    test_one.py::test_bad" in output
    assert "second failure of test_one.py::test_bad" in output
    assert run.unstable() == ["test_one.py::test_unlucky"]


def test_more_than_three_unstable_tests_fail_the_run_whichever_stage_they_were_in(run: Run) -> None:
    run.write("test_first", "def test_a(): fails_once('a')\ndef test_b(): fails_once('b')")
    run.write("test_second", "def test_c(): fails_once('c')\ndef test_d(): fails_once('d')\ndef test_e(): pass")
    code, output = run("test_first.py")
    assert code == 0, output
    assert "2 unstable in" in closing_line(output)
    code, output = run("test_second.py")
    assert code == 1, output
    assert "2 failed, 1 passed in" in closing_line(output)
    assert "4 tests of this run are unstable, and at most 3 may be" in output
    assert "first: failed in call    second: passed    test_second.py::test_c" in output


def test_the_second_run_is_alone_and_after_all_others(run: Run) -> None:
    note = "import time\ndef note(name):\n    with open('order', 'a') as file: file.write(name + '\\n')\n"
    run.write("test_one", f"{note}def test_unlucky():\n    note('unlucky')\n    fails_once('luck')")
    for name in ("test_two", "test_three"):
        run.write(name, note + "\n".join(f"def test_{number}(): note('other')" for number in range(20)))
    code, output = run("-n", "2", "--dist", "loadfile")
    assert code == 0, output
    order = (run.directory / "order").read_text().splitlines()
    assert order.count("other") == 40
    assert order.count("unlucky") == 2
    assert order[-1] == "unlucky"


def test_failures_around_a_test_count_too(run: Run) -> None:
    run.write(
        "test_one",
        "import pytest\n"
        "@pytest.fixture\ndef early(): fails_once('early')\n"
        "@pytest.fixture\ndef late():\n    yield\n    fails_once('late')\n"
        "def test_early(early): pass\n"
        "def test_late(late): pass\n"
        "def test_good(): pass\n",
    )
    code, output = run()
    assert code == 0, output
    assert "1 passed, 2 unstable in" in closing_line(output)
    assert "first: failed in setup    second: passed    test_one.py::test_early" in output
    assert "first: failed in teardown    second: passed    test_one.py::test_late" in output


def test_what_fails_after_the_last_test_of_a_file_is_repeated_with_the_file(run: Run) -> None:
    leaves = "import pytest\nleft = []\n@pytest.fixture(scope='module', autouse=True)\n"
    leaves += "def nothing_left():\n    yield\n    assert left == []\n"
    run.write("test_one", f"{leaves}def test_leaves(): left.append('a namespace')\ndef test_last(): pass\n")
    code, output = run()
    assert code == 1, output
    assert "first: failed in teardown    second: failed    test_one.py::test_last" in output


def test_a_second_run_that_is_skipped_has_not_passed(run: Run) -> None:
    run.write("test_one", "import pytest\ndef test_it():\n    fails_once('luck')\n    pytest.skip('no more')\n")
    code, output = run()
    assert code == 1, output
    assert "1 failed in" in closing_line(output)


def test_folders_have_plugins_of_their_own(run: Run) -> None:
    (run.directory / "deep").mkdir()
    (run.directory / "deep/conftest.py").write_text("def pytest_runtest_logreport(report): pass\n")
    run.write("test_one", "def test_unlucky(): fails_once('luck')")
    run.write("deep/test_two", "def test_good(): pass")
    code, output = run()
    assert code == 0, output
    assert "1 passed, 1 unstable in" in closing_line(output)


def test_a_worker_that_dies_is_a_failure_of_its_test(run: Run) -> None:
    dies = "import os\ndef test_dies():\n    try:\n        fails_once('life')\n    except AssertionError:\n        os._exit(3)\n"
    run.write("test_one", f"{dies}def test_good(): pass")
    code, output = run("-n", "2", "--dist", "loadfile")
    assert code == 0, output
    assert "1 passed, 1 unstable in" in closing_line(output)


def test_a_run_with_many_failures_repeats_none(run: Run) -> None:
    run.write("test_one", "\n".join(f"def test_{number}(): fails_once('n{number}')" for number in range(13)))
    code, output = run()
    assert code == 1, output
    assert "13 tests failed, so none was repeated" in output
    assert "13 failed in" in closing_line(output)


def test_a_hang_ends_with_the_stacks_of_threads_and_tasks(run: Run) -> None:
    hangs = "async def test_hangs():\n    await asyncio.gather(waits_for_ever(), asyncio.Event().wait())\n"
    run.write(
        "test_one",
        "import asyncio, pytest\n"
        "async def waits_for_ever(): await asyncio.Event().wait()\n"
        f"@pytest.mark.timeout(1)\n@pytest.mark.asyncio(loop_scope='session')\n{hangs}"
        "@pytest.mark.asyncio(loop_scope='session')\nasync def test_continues(): await asyncio.sleep(0)\n",
    )
    code, output = run("-p", "tests.support.evidence", "-p", "pytest_timeout", "-p", "pytest_asyncio.plugin")
    assert code == 1, output
    assert "1 failed, 1 passed in" in closing_line(output)
    first = output.partition("second run:")[0] + output.partition("= FAILURES =")[2]
    assert "(most recent call first)" in first
    assert "in waits_for_ever" in first
