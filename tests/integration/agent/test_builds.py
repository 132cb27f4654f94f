"""Parts of kernels that are built once per node, in the background."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from retinue.agent.builds import NOT_BUILT, NodeBuilds, Part, make
from retinue.agent.kernel.build import BuildError
from retinue.agent.kernel.ssh_programs import SOURCES, build_programs
from tests.support.eventually import NEVER, eventually

# In place of a build: waits until `go` is there, then makes the part, or fails as the file says.
BUILD = """
import os, pathlib, sys, time
directory = pathlib.Path(sys.argv[sys.argv.index("--directory") + 1])
with open(directory / "begun", "a") as file:
    file.write(f"{os.getpid()}\\n")
while not (directory / "go").exists():
    time.sleep(0.01)
if why := (directory / "go").read_text():
    sys.exit(f"building …\\nError: {why}")
(directory / "part").mkdir()
"""


def find(cache: Path) -> Path | None:
    return next(cache.glob("part"), None)


@dataclass(slots=True)
class Node:
    """A node whose one part is built when `go` says so."""

    cache: Path
    part: Part

    def go(self, why: str = "") -> None:
        (self.cache / "go.new").write_text(why)
        (self.cache / "go.new").rename(self.cache / "go")

    def begun(self) -> list[int]:
        file = self.cache / "begun"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    program = tmp_path / "build"
    program.write_text(f"#!{sys.executable}\n{BUILD}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    return Node(tmp_path, Part("part", "the part", find, lambda cache: cache / "part"))


async def test_all_who_need_a_part_wait_for_one_build(node: Node) -> None:
    changes = []
    builds = NodeBuilds(node.cache, parts=[node.part], changed=lambda part: changes.append(builds.in_progress(part)))
    await builds.begin()
    assert builds.in_progress(node.part)
    waiting = [asyncio.create_task(builds.ready(node.part)) for _ in range(3)]
    await eventually(node.begun)
    node.go()
    assert await asyncio.gather(*waiting) == [node.cache / "part"] * 3
    assert (len(node.begun()), changes) == (1, [True, False])
    assert await builds.ready(node.part) == node.cache / "part"
    assert len(node.begun()) == 1


async def test_one_who_gives_up_ends_no_build_of_others(node: Node) -> None:
    builds = NodeBuilds(node.cache, parts=[node.part])
    first, second = (asyncio.create_task(builds.ready(node.part)) for _ in range(2))
    await eventually(node.begun)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    node.go()
    assert await second == node.cache / "part"


async def test_a_build_that_fails_says_why_and_is_tried_again(node: Node) -> None:
    builds = NodeBuilds(node.cache, parts=[node.part])
    node.go("no compiler")
    assert await builds.ready(node.part) is None
    assert (builds.failure(node.part), builds.in_progress(node.part)) == ("no compiler", False)
    node.go()
    assert await builds.ready(node.part) == node.cache / "part"
    assert builds.failure(node.part) == ""


async def test_builds_end_with_their_agent(node: Node) -> None:
    builds = NodeBuilds(node.cache, parts=[node.part])
    await builds.begin()
    pids = await eventually(node.begun)
    await builds.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert find(node.cache) is None


async def test_builds_end_with_an_agent_that_is_killed(node: Node) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom retinue.agent import builds\n"
        "part = builds.Part('part', 'the part', lambda _: None, lambda cache: cache)\n"
        f"sys.executable = {str(node.cache / 'build')!r}\n"
        "asyncio.run(builds.NodeBuilds(Path(sys.argv[1]), parts=[part]).ready(part))\n"
    )
    # The fixture replaced the interpreter of builds, which is that of this process, too.
    interpreter = str(Path(sys.prefix) / "bin" / "python")
    agent = await asyncio.create_subprocess_exec(interpreter, "-c", code, str(node.cache))
    (pid,) = await eventually(node.begun)
    agent.send_signal(signal.SIGKILL)
    await agent.wait()
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


def plant_programs(directory: Path, cases: str) -> Path:
    """Makes the programs that build ssh; they do what `cases` of a shell have for their arguments, else nothing."""
    programs = directory / "bin"
    programs.mkdir()
    for name in ("musl-gcc", "make", "dpkg-source", "apt-get"):
        (programs / name).write_text(f'#!/bin/sh\ncase "$*" in {cases};; esac\n')
        (programs / name).chmod(0o755)
    return programs


def test_a_build_of_ssh_without_a_network_says_what_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # apt-get calls it a success.
    programs = plant_programs(tmp_path, '*update*) echo "Err:1 x"; echo "W: Failed to fetch x: no such name"')
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    with pytest.raises(BuildError, match="Debian's sources cannot be fetched: Failed to fetch x: no such name"):
        build_programs(tmp_path / "cache")


async def test_a_build_of_ssh_that_is_ended_ends_all_its_commands(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    # Sources are fetched until it is ended.
    fetch = f"*download-only*) echo $$ >>{tmp_path}/begun; exec sleep 600"
    programs = plant_programs(tmp_path, f"*update*) touch lists/of_Sources;; {fetch}")
    build = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "retinue.agent.main", "build", "ssh", "--directory", str(cache)),
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
    )
    try:
        pids = await eventually(
            lambda: (tmp_path / "begun").read_text().split() if (tmp_path / "begun").exists() else [],
            lambda pids: len(pids) == len(SOURCES),
        )
        build.send_signal(signal.SIGTERM)
        async with asyncio.timeout(NEVER):
            await build.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            build.kill()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert not list(cache.glob(".build-*"))


def test_processes_of_one_machine_build_one_after_the_other(tmp_path: Path) -> None:
    made = []

    def build(cache: Path) -> Path:
        made.append(cache)
        (cache / "part").mkdir()
        return cache / "part"

    part = Part("part", "the part", find, build)
    assert make(part, tmp_path) == make(part, tmp_path) == tmp_path / "part"
    assert made == [tmp_path]


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    part = Part("part", "the part", lambda _: None, lambda cache: cache)
    with pytest.raises(BuildError, match="cannot be written: Not a directory"):
        make(part, tmp_path / "file" / "cache")


async def test_a_node_without_builds_starts_where_it_cannot_write(node: Node) -> None:
    # As on a file system that is read-only, for root as well.
    (node.cache / f".{node.part.name}.lock").mkdir()
    builds = NodeBuilds(node.cache, parts=[node.part], builds=False)
    await builds.begin()
    assert not builds.in_progress(node.part)
    assert await builds.ready(node.part) is None
    assert "cannot be written" in builds.failure(node.part)


async def test_a_node_without_builds_waits_for_those_of_others(node: Node) -> None:
    other, builds = (NodeBuilds(node.cache, parts=[node.part], builds=builds) for builds in (True, False))
    await builds.begin()
    assert not builds.in_progress(node.part)
    assert await builds.ready(node.part) is None
    assert builds.failure(node.part) == NOT_BUILT
    await other.begin()
    await eventually(node.begun)
    await builds.begin()
    assert builds.in_progress(node.part)
    waiting = asyncio.create_task(builds.ready(node.part))
    node.go()
    assert await waiting == node.cache / "part"
    assert len(node.begun()) == 1


async def test_agents_of_one_machine_build_one_after_the_other(node: Node) -> None:
    several = [NodeBuilds(node.cache, parts=[node.part]) for _ in range(3)]
    waiting = [asyncio.create_task(builds.ready(node.part)) for builds in several]
    await eventually(node.begun)
    node.go()
    assert await asyncio.gather(*waiting) == [node.cache / "part"] * 3
    assert len(node.begun()) == 1
