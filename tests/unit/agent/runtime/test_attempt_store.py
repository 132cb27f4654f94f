"""Records that are written late hold up nothing else."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.runtime import attempt_store as book_module
from retinue.agent.runtime.attempt_records import Record, Records, ended
from retinue.agent.runtime.attempt_store import AttemptStore
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path


class SlowDisk(Records):
    """Refuses to write at first, then takes as long as `resume` says for all but the attempt `quick.1`, and may fail
    after that.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.full = False
        self.broken = False
        self.written: list[str] = []
        self.waiting = threading.Event()
        self.resume = threading.Event()

    def write(self, record: Record) -> None:
        if self.full:
            raise OSError(28, "no space left on device")
        if record.id != "quick.1":
            self.waiting.set()
            self.resume.wait(NEVER)
        if self.broken:
            raise OSError(5, "input/output error")
        super().write(record)
        self.written.append(record.id)


async def test_an_end_is_written_while_late_records_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "LATE_INTERVAL", 0.0)
    disk = SlowDisk(tmp_path / "attempts")
    store = AttemptStore(disk)
    await store.open(lambda: None)
    names = [*(f"late{number}.1" for number in range(20)), "quick.1"]
    for name in names:
        assert await store.add(Record(name, "s", "k", "boot"), lasting=False)
    disk.full = True
    for name in names[:-1]:
        await store.note(ended(store.record(name), Phase.EXITED, "EXITED", "", 1.0))
    disk.full = False
    writing = asyncio.create_task(store.write_late())
    try:
        await asyncio.to_thread(disk.waiting.wait, NEVER)
        # Twenty records wait to be written, each for as long as the disk takes: the end of another attempt does not.
        await store.note(ended(store.record("quick.1"), Phase.EXITED, "EXITED", "", 1.0))
        assert disk.written == ["quick.1"]
        disk.resume.set()
        async with asyncio.timeout(NEVER):
            while len(disk.written) < len(names):
                await asyncio.sleep(0)
    finally:
        disk.resume.set()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_what_fails_after_its_caller_has_gone_is_no_error_of_asyncio(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path / "attempts")
    store = AttemptStore(disk)
    await store.open(lambda: None)
    assert await store.add(Record("late.1", "s", "k", "boot"), lasting=False)
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    noting = asyncio.create_task(store.note(ended(store.record("late.1"), Phase.EXITED, "EXITED", "", 1.0)))
    await asyncio.to_thread(disk.waiting.wait, NEVER)
    noting.cancel()
    await asyncio.gather(noting, return_exceptions=True)
    (saving,) = (task for task in asyncio.all_tasks() if task is not asyncio.current_task())
    disk.broken = True
    disk.resume.set()
    await asyncio.wait((saving,))
    del saving, noting
    gc.collect()
    assert complaints == []


class BreakingDisk(Records):
    """Fails so many times after a first record was made, or as it is made to last."""

    def __init__(self, directory: Path, *, adds: int = 0, syncs: int = 0) -> None:
        super().__init__(directory)
        self.adds = adds
        self.syncs = syncs

    def add(self, record: Record) -> bool:
        added = super().add(record)
        if self.adds:
            self.adds -= 1
            raise OSError(5, "input/output error")
        return added

    def make_lasting(self, attempt_id: str) -> None:
        if self.syncs:
            self.syncs -= 1
            raise OSError(5, "input/output error")
        super().make_lasting(attempt_id)


@pytest.mark.parametrize("failures", [{"adds": 2}, {"syncs": 2}, {"adds": 1, "syncs": 1}])
async def test_an_attempt_is_added_after_tries_that_failed(tmp_path: Path, failures: dict[str, int]) -> None:
    disk = BreakingDisk(tmp_path / "attempts", **failures)
    store = AttemptStore(disk)
    await store.open(lambda: None)
    for _ in range(2):
        with pytest.raises(OSError, match="input/output"):
            await store.add(Record("one.1", "s", "k", "former boot"))
        assert "one.1" not in store
    assert await store.add(Record("one.1", "s", "k", "boot"))
    assert Records(tmp_path / "attempts").load().records == {"one.1": Record("one.1", "s", "k", "boot")}
    assert not await store.add(Record("one.1", "s", "k", "boot"))


async def test_a_directory_that_no_try_has_made_is_not_taken(tmp_path: Path) -> None:
    store = AttemptStore(Records(tmp_path / "attempts"))
    await store.open(lambda: None)
    Records(tmp_path / "attempts").add(Record("one.1", "s", "k", "boot"))
    for _ in range(2):
        assert not await store.add(Record("one.1", "s", "k", "boot"))
