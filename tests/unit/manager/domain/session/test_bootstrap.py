"""The bootstrap script and the command as one, run by a real shell; and which types of sessions have what."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from retinue.manager.domain.session.bootstrap import FAILED_EXIT_CODE, with_bootstrap
from retinue.manager.domain.session.features import FEATURES, Feature
from retinue.manager.domain.session.states import SessionType
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path


def run(script: str, command: list[str], place: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    arguments, environment = with_bootstrap(command, {"A": "a"}, script)
    return subprocess.run(
        arguments,
        env={**environment, "PATH": "/usr/bin:/bin", "TMPDIR": str(place)},
        cwd=place,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=NEVER,
    )


def test_the_script_comes_first_and_leaves_nothing(tmp_path: Path) -> None:
    done = run("read line; echo $A $line >made; exit 0", ["sh", "-c", "cat made; env; exit 4"], tmp_path, "given\n")
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (4, "a given", "")
    assert "BOOTSTRAP" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_failed_script_keeps_the_command_from_starting(tmp_path: Path) -> None:
    done = run("echo before; exit 7", ["echo", "never"], tmp_path)
    assert (done.returncode, done.stdout) == (FAILED_EXIT_CODE, "before\n")
    assert "exit code 7" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_first_line_names_the_interpreter(tmp_path: Path) -> None:
    done = run("#!/usr/bin/env python3\nprint(6 * 7)", ["echo", "after"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "42\nafter\n")


@pytest.mark.parametrize("script", ["$(exit 3)", "'\"$`\\", "unset -f x; ("])
def test_quotes_are_the_scripts_own(script: str, tmp_path: Path) -> None:
    assert run(script, ["echo", "x"], tmp_path).returncode == FAILED_EXIT_CODE


def test_no_script_changes_nothing() -> None:
    assert with_bootstrap(["a"], {"B": "c"}, "") == (("a",), {"B": "c"})


def test_the_table_of_features() -> None:
    assert FEATURES.keys() == set(SessionType)
    only_batch = {Feature.RESULT, Feature.DEPENDENCIES, Feature.START_TIME, Feature.RETRIES}
    for kind, features in FEATURES.items():
        assert bool(only_batch & features) == (kind is SessionType.BATCH)
        assert (Feature.CODE_EXECUTION in features) == (kind is SessionType.INTERACTIVE)
        assert {Feature.SERVICE_PORTS, Feature.CLUSTERING} <= features
