"""What a local cluster builds beside itself on a machine that has not built it yet."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from retinue.agent.builds import NodeBuilds, Part
from retinue.agent.kernel.build import PROGRAMS, built_path
from retinue.devtools import first_builds
from retinue.devtools.first_builds import CONSOLE, FirstBuilds
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

# Fails, and counts how often.
_BUILD = """
import pathlib, sys
with open(pathlib.Path(sys.argv[sys.argv.index("--directory") + 1]) / "tries", "a") as file:
    file.write("x")
sys.exit("Error: no network")
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in a directory with a space, with its own environment; its machine lacks nothing but the console."""
    directory = tmp_path / "my checkout"
    (directory / ".venv").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(directory / ".venv"))
    monkeypatch.setattr(first_builds, "CACHE", tmp_path)
    monkeypatch.setattr(first_builds, "PARTS", ())
    monkeypatch.setattr(first_builds, "_checkout_without_console", lambda: directory)
    return directory


@pytest.mark.parametrize(
    ("recipe", "failure"),
    [("test -d $(VENV)", ""), ("@echo no npm; false", "no npm\nmake: *** [Makefile:2: console] Error 1")],
)
async def test_the_console_is_built_wherever_the_checkout_is(checkout: Path, recipe: str, failure: str) -> None:
    (checkout / "Makefile").write_text(f"console:\n\t{recipe}\n")
    builds = FirstBuilds()
    assert builds.missing == [CONSOLE]
    ((title, why),) = [found async for found in builds.run(checkout)]
    assert (title, why.partition("\n(")[0]) == (CONSOLE, failure)
    assert why == "" or why.endswith(f"(`make console` in {checkout} tries again)")


async def test_what_agents_start_with_is_built_before_anything_else(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkout
    there: list[bool] = []

    def look(cache: Path) -> Path:
        there.append(all(built_path(cache, program).exists() for program in PROGRAMS))
        return cache

    builds = FirstBuilds()
    monkeypatch.setattr(builds, "_builds", NodeBuilds(tmp_path, parts=[Part("part", "the part", look, look)]))
    await builds.begin()
    assert there == [True]


async def test_what_failed_while_the_cluster_started_is_not_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "build"
    program.write_text(f"#!{sys.executable}\n{_BUILD}")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(first_builds, "CACHE", tmp_path)
    part = Part("part", "the part", lambda _: None, lambda cache: cache)
    monkeypatch.setattr(first_builds, "PARTS", (part,))
    monkeypatch.setattr(first_builds, "_checkout_without_console", lambda: None)
    builds = FirstBuilds()
    await builds.begin()
    await eventually(lambda: builds._builds.failure(part))  # noqa: SLF001  # it is not reported yet
    assert [found async for found in builds.run(tmp_path)] == [("the part", "no network")]
    assert (tmp_path / "tries").read_text() == "x"
    await builds.close()
