"""Sockets of Jupyter kernels are found by their names only where no link leads to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.errors import NotRunningError
from retinue.agent.host.processes import Process, identify
from retinue.agent.inside.sockets import open_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("s-1", "s-2", "s-3", "s-4")


@contextlib.contextmanager
def listening(directory: Path, names: tuple[str, ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in names:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(directory / name))
        yield


@pytest.fixture
def place() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix=".retinue-code-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def me() -> Process:
    process = identify(os.getpid())
    assert process is not None
    return process


def test_sockets_are_opened(place: Path, me: Process) -> None:
    with listening(place, NAMES):
        found = open_sockets(me, str(place), NAMES)
    assert len(found) == len(NAMES)
    for target in found:
        target.close()


def test_links_and_files_are_refused(place: Path, me: Process) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with listening(place, ("s-1", "s-2", "s-3", "real")):
        with pytest.raises(NotRunningError):
            open_sockets(me, str(place), NAMES)
        (place / "s-4").symlink_to(place / "real")
        with pytest.raises(NotRunningError):
            open_sockets(me, str(place), NAMES)
        (place / "s-4").unlink()
        (place / "s-4").write_text("no socket")
        with pytest.raises(NotRunningError):
            open_sockets(me, str(place), NAMES)
    link = place.with_name(f"{place.name}-link")
    link.symlink_to(place)
    try:
        with pytest.raises(NotRunningError):
            open_sockets(me, str(link), NAMES)
    finally:
        link.unlink()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_process_that_has_ended_has_none(place: Path, me: Process) -> None:
    with listening(place, NAMES), pytest.raises(NotRunningError):
        open_sockets(Process(me.pid, me.start + 1), str(place), NAMES)
