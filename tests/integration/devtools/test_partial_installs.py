"""What answers where only a part of the project is installed: each of its programs says what is missing.

An environment is a real one, with a real wheel of the project. The packages of others in it are links to those of this
run, as many as the part requires.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from docs.generator import ROOT
from tests.unit.docs.project_files import listed

PARTS = ("", "manager", "agent", "router")
# Each command of `retinue` that there is, asked for its help in one process.
HELP_OF_ALL = """
import click
from retinue.client.command.application import cli
def ask(command, words):
    context = click.Context(command, info_name=words[-1])
    command.get_help(context)
    count = 1
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            count += ask(command.get_command(context, name), [*words, name])
    return count
print(ask(cli, ["retinue"]))
"""
# Modules below a package, but for programs, which start when they are imported, what Alembic runs, and what runs inside
# kernels, where other packages are.
IMPORT_ALL = """
import importlib, pkgutil, sys
left_out = {"__main__", "env", "code_output"}
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if module.name.rpartition(".")[2] not in left_out:
            importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel without the console, from what git has."""
    source = tmp_path_factory.mktemp("source")
    for name in listed("*"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    environment = {**os.environ, "RETINUE_BUILD_CONSOLE": "0"}
    subprocess.run([*command, "--wheel-dir", source / "dist", source], check=True, env=environment)
    (built,) = (source / "dist").glob("*.whl")
    return built


def required(part: str) -> set[str]:
    """Names of the distributions that the project requires with this extra, and of what those require."""
    found: set[str] = set()
    waiting = [("retinue", {part})]
    while waiting:
        name, extras = waiting.pop()
        for line in metadata.distribution(name).requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in ({""} | extras))
            if applies and requirement.name not in found:
                found.add(requirement.name)
                waiting.append((requirement.name, requirement.extras))
    return found


@pytest.fixture(scope="module", params=PARTS, ids=[part or "client" for part in PARTS])
def part(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Part:
    return Part(request.param, wheel, tmp_path_factory.mktemp("part") / "venv")


class Part:
    """An environment that has the project with one extra, or none."""

    def __init__(self, name: str, wheel: Path, directory: Path) -> None:
        self.name = name
        self._programs = directory / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
        (packages,) = directory.glob("lib/python*/site-packages")
        for distribution in required(name):
            for file in metadata.distribution(distribution).files or ():
                if ".." not in file.parts:
                    link = packages / file
                    link.parent.mkdir(parents=True, exist_ok=True)
                    # Two distributions may have the same compiled module.
                    link.unlink(missing_ok=True)
                    link.symlink_to(Path(str(file.locate())).resolve())
        command = [sys.executable, "-m", "pip", "--python", str(self._programs / "python"), "install", "--quiet"]
        subprocess.run([*command, "--no-deps", "--no-index", "--no-compile", wheel], check=True)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs; nothing of this run's own environment is seen."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RETINUE"))}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(self._programs.parent)}
        return subprocess.run(
            [str(self._programs / program), *arguments],
            env=environment,
            cwd=self._programs.parent,
            capture_output=True,
            text=True,
            check=False,
        )


def test_every_command_of_the_client_has_help(part: Part) -> None:
    ended = part.run("python", "-c", HELP_OF_ALL)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 100
    assert part.run("retinue", "--version").stdout.startswith("retinue")


def test_what_a_part_requires_is_all_that_it_imports(part: Part) -> None:
    packages = ["retinue.client", *([f"retinue.{part.name}"] if part.name else [])]
    ended = part.run("python", "-W", "error", "-c", IMPORT_ALL, *packages)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("program", ["manager", "agent", "router"])
def test_a_program_says_which_extra_it_needs(part: Part, program: str) -> None:
    ended = part.run(f"retinue-{program}", "--help")
    # A manager's packages are more than a router needs.
    if program == part.name or (part.name, program) == ("manager", "router"):
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith("Usage: ")
    else:
        assert ended.returncode == 2
        assert ended.stderr.endswith(f"pip install 'retinue[{program}]'\n")
        assert "Traceback" not in ended.stderr


def test_a_command_for_nodes_says_which_extra_it_needs(part: Part) -> None:
    ended = part.run("retinue", "doctor", "-o", "json")
    assert "Traceback" not in ended.stderr
    if part.name == "agent":
        assert ended.stdout.startswith("["), ended.stderr
    else:
        assert ended.returncode == 2
        assert "pip install 'retinue[agent]'" in ended.stderr


def test_a_cluster_is_refused_before_anything_is_started(part: Part) -> None:
    ended = part.run("retinue", "dev")
    assert ended.returncode == 2
    assert "pip install 'retinue[manager,agent]'" in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
