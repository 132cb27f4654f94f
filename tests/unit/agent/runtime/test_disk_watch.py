"""Kernels that have too much on the disk are ended, again and again looked for, whatever fails with one of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from retinue.agent.conditions import Conditions
from retinue.agent.runtime import disk_use
from retinue.agent.runtime.disk_use import DISK_EXCEEDED, Bounds, DiskFootprint, DiskWatch, Use
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

BOUNDS = Bounds(64 << 20, 10)


class Kernels:
    """Kernels with so many files in their work directories; what is in `odd` fails."""

    def __init__(self, directory: Path, **files: int) -> None:
        self.directory = directory
        self.odd: set[str] = set()
        self.layers: dict[str, int] = {}
        self.ended: list[tuple[str, str, str]] = []
        self.looks = 0
        for name, number in files.items():
            (directory / name).mkdir()
            for file in range(number):
                (directory / name / str(file)).touch()

    async def footprints(self) -> Mapping[str, DiskFootprint]:
        self.looks += 1
        if "footprints" in self.odd:
            self.odd.remove("footprints")
            raise RuntimeError("odd")
        paths = sorted(self.directory.iterdir())
        return {path.name: DiskFootprint((path,), layer=self.layers.get(path.name, 0)) for path in paths}

    async def end(self, attempt_id: str, reason: str, message: str) -> None:
        self.ended.append((attempt_id, reason, message))
        if attempt_id in self.odd:
            raise OSError("odd")


@contextlib.asynccontextmanager
async def watching(
    kernels: Kernels, bounds: Bounds = BOUNDS, conditions: Conditions | None = None
) -> AsyncIterator[None]:
    task = asyncio.create_task(DiskWatch(kernels, kernels.directory, bounds, conditions or Conditions()).run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INTERVAL", "STEP"):
        monkeypatch.setattr(disk_use, name, 0.001)


@pytest.mark.usefixtures("quick")
async def test_each_that_has_too_much_is_ended_whatever_fails_with_others(tmp_path: Path) -> None:
    kernels = Kernels(tmp_path, a=11, b=11, c=10, d=0)
    kernels.odd = {"a"}
    kernels.layers = {"d": BOUNDS.size + 1}
    async with watching(kernels):
        await eventually(lambda: len(kernels.ended) >= 3)
    assert [(name, reason) for name, reason, _ in kernels.ended[:3]] == [(name, DISK_EXCEEDED) for name in "abd"]
    assert "10 files" in kernels.ended[0][2]
    assert "64 MiB" in kernels.ended[2][2]


@pytest.mark.usefixtures("quick")
async def test_each_has_the_bounds_of_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(tmp_path, a=11, b=11, c=3)
    bounds = {"a": Bounds(64 << 20, 20), "c": Bounds(64 << 20, 2)}

    async def footprints() -> Mapping[str, DiskFootprint]:
        return {name: DiskFootprint((tmp_path / name,), bounds=bounds.get(name)) for name in "abc"}

    monkeypatch.setattr(kernels, "footprints", footprints)
    async with watching(kernels):
        await eventually(lambda: len(kernels.ended) >= 2)
    assert [name for name, _, _ in kernels.ended[:2]] == ["b", "c"]
    assert "2 files" in kernels.ended[1][2]


@pytest.mark.usefixtures("quick")
async def test_what_cannot_be_looked_at_is_looked_at_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernels = Kernels(tmp_path, a=11)
    kernels.odd = {"footprints"}
    with caplog.at_level(logging.WARNING):
        async with watching(kernels):
            await eventually(lambda: bool(kernels.ended))
    assert len([record for record in caplog.records if "cannot be measured" in record.getMessage()]) == 1


@pytest.mark.parametrize(
    ("fallen", "rounds"), [(Use(501, 0), 2), (Use(0, 6), 2), (Use(500, 5), 1)], ids=["bytes", "files", "neither"]
)
async def test_only_a_fast_fall_of_what_is_free_is_looked_at_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallen: Use, rounds: int
) -> None:
    monkeypatch.setattr(disk_use, "STEP", 0.0)
    monkeypatch.setattr(disk_use, "INTERVAL", 1e6)
    kernels, asked = Kernels(tmp_path), 0

    def free(_: DiskWatch) -> Use:
        nonlocal asked
        asked += 1
        return Use(1000, 1000) if asked < 20 else Use(1000 - fallen.size, 1000 - fallen.files)

    monkeypatch.setattr(DiskWatch, "_free", free)
    async with watching(kernels, Bounds(1000, 10)):
        await eventually(lambda: asked > 40)
    assert kernels.looks == rounds


@pytest.mark.parametrize(("took", "pause"), [(0.1, disk_use.INTERVAL), (2.0, 18.0)])
async def test_looking_takes_a_tenth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, pause: float
) -> None:
    pauses: list[float] = []

    async def wait(_: DiskWatch, seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr(DiskWatch, "_pause", wait)
    moments = iter((100.0, 100.0 + took))
    monkeypatch.setattr(disk_use, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    async with watching(Kernels(tmp_path)):
        await eventually(lambda: bool(pauses))
    assert pauses == [pytest.approx(pause)]


@pytest.mark.usefixtures("quick")
async def test_a_disk_that_cannot_be_measured_is_a_condition_of_the_node_and_one_line_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels, conditions, tries = Kernels(tmp_path), Conditions(), 0

    async def footprints() -> Mapping[str, DiskFootprint]:
        nonlocal tries
        tries += 1
        if tries < 20:
            raise PermissionError(f"not permitted for the {tries}. time")
        return {}

    monkeypatch.setattr(kernels, "footprints", footprints)
    shown: list[str] = []
    conditions.listen(lambda: shown.extend(condition.message for condition in conditions.all()))
    async with watching(kernels, conditions=conditions):
        await eventually(lambda: tries > 20)
    assert conditions.all() == ()
    assert "cannot be measured: not permitted for the 1. time; failed once since" in shown[0]
    assert "failed 16 times or more since" in shown[-1]
    (failure,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert failure.exc_info is None
