"""Every command of docs/tutorial, as a reader would type it, and what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from retinue.client.aio import Client
from retinue.client.errors import FailedPrecondition
from retinue.client.settings import read_contexts
from retinue.devtools.cluster import free_ports
from tests.integration.docs.tutorial.page import Step, steps
from tests.support.eventually import NEVER, eventually, eventually_blocking

TUTORIAL = Path(__file__).parents[4] / "docs" / "tutorial"
PAGES = sorted(TUTORIAL.glob("[0-9]*.md"))


@dataclass(slots=True)
class Reader:
    """Who types: a directory, an environment, and what runs in other terminals."""

    directory: Path
    environment: dict[str, str]
    others: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def follow(self, step: Step) -> None:
        """Runs a step; fails unless it succeeds and prints what it is to print."""
        if step.background:
            self._leave_running(step)
            return
        command = ["bash", "-eu", "-c", step.commands]
        output = self.directory / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(NEVER)
            finally:
                _end(process, signal.SIGKILL)
        printed = output.read_text()
        assert status == 0, f"{step.place} ended with {status}:\n{printed}"
        missing = step.missing(printed)
        assert missing is None, f"{step.place} did not print {missing!r}:\n{printed}"

    def _leave_running(self, step: Step) -> None:
        output = self.directory / f"terminal{len(self.others)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {step.commands}"],  # noqa: S607
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.others.append((process, output))

        def missing() -> str | None:
            ended = process.poll() is not None
            found = step.missing(output.read_text())
            assert found is None or not ended, f"{step.place} ended with {process.returncode}:\n{output.read_text()}"
            return found

        eventually_blocking(missing, lambda found: found is None)

    def close(self) -> None:
        """Ctrl-C in the other terminals, the last one first."""
        while self.others:
            _end(self.others.pop()[0], signal.SIGINT)


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Ends what a step started, whole."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    try:
        process.wait(NEVER)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RETINUE_", "NO_COLOR"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "RETINUE_CONTEXTS": str(home / "contexts.yaml"), "COLUMNS": "200", "TZ": "UTC"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the cluster of the first page is known, which stays up for all pages."""
    directory = tmp_path_factory.mktemp("cluster")
    first = steps(PAGES[0])[0]
    assert (first.commands, first.background) == ("retinue dev\n", True)
    # A reader has the port free; tests run beside others.
    started = Step(first.place, f"retinue dev --port {free_ports()[0]}\n", first.expected, background=True)
    reader = Reader(directory, _environment(directory))
    try:
        reader.follow(started)
        yield directory
    finally:
        reader.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, home: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path, _environment(home))
    try:
        for step in steps(page):
            if step.commands != "retinue dev\n":
                reader.follow(step)
    finally:
        reader.close()
        asyncio.run(_clear(home))


async def _clear(home: Path) -> None:
    """Ends what a page left, also after it failed: endpoints first, which would replace their replicas."""
    _, contexts = read_contexts(home / "contexts.yaml")
    settings = contexts["dev"]
    async with Client.connect(settings.endpoint, token=settings.token, ca=settings.ca) as client:
        async for endpoint in client.endpoints.list():
            await client.endpoints.delete(endpoint.id)

        async def left() -> list[str]:
            found = [session async for session in client.sessions.list()]
            for session in found:
                with contextlib.suppress(FailedPrecondition):
                    await session.terminate(force=True)
            return [session.id for session in found]

        await eventually(left, [].__eq__)


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (TUTORIAL / "README.md").read_text()
    assert all(f"]({page.name})" in contents for page in PAGES)
    assert len(PAGES) > 1
