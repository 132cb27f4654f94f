"""How long guarded attempts continue without a manager, over restarts of the agent and of the node."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import AttemptSpec, DesiredAttempt, Goal
from retinue.agent.fencing import watchdog
from retinue.agent.fencing.lease import Fence, OverdueError
from retinue.agent.fencing.watchdog import FenceTarget
from retinue.agent.host.processes import Process
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path


def guarded(name: str, seconds: float) -> DesiredAttempt:
    return DesiredAttempt(AttemptSpec(f"{name}.1", "s", name, 1, "main1"), Goal.RUNNING, 5.0, seconds)


def test_time_counts_from_what_was_heard(tmp_path: Path) -> None:
    now = 100.0
    fence = Fence(tmp_path, "boot", lambda: now)
    fence.guard([guarded("a", 10.0), guarded("b", 0.0), guarded("c", 30.0)])
    assert (fence.due(), fence.wait()) == (frozenset(), 10.0)
    now = 108.0
    # What was sent earlier says nothing of what was sent since.
    fence.confirm(104.0)
    fence.confirm(101.0)
    assert fence.wait() == 6.0
    now = 114.0
    assert (set(fence.due()), fence.wait()) == ({"a.1"}, 20.0)
    fence.forget({"b.1", "c.1"})
    assert fence.due() == frozenset()


def test_an_agent_that_returns_knows_how_late_it_is(tmp_path: Path) -> None:
    now = 100.0
    path = tmp_path / "fence.json"
    fence = Fence(tmp_path, "boot", lambda: now)
    fence.guard([guarded("a", 10.0)])
    fence.confirm(100.0)
    fence.write()
    now = 111.0
    assert Fence(tmp_path, "boot", lambda: now).due() == {"a.1"}
    # After a restart of the node nothing of it runs.
    assert Fence(tmp_path, "other", lambda: now).due() == frozenset()
    path.write_text("not json")
    assert Fence(tmp_path, "boot", lambda: now).due() == frozenset()


def test_contact_in_the_future_is_none(tmp_path: Path) -> None:
    """Whatever a file says: the time without a manager counts from now at the latest."""
    (tmp_path / watchdog.FILE).write_bytes(watchdog.Guarded("boot", 1e9, {"a.1": 10.0}).encode())
    now = 100.0
    fence = Fence(tmp_path, "boot", lambda: now)
    assert (fence.due(), fence.wait()) == (frozenset(), 10.0)
    now = 110.0
    assert fence.due() == {"a.1"}


def test_what_is_forgotten_is_guarded_no_more(tmp_path: Path) -> None:
    fence = Fence(tmp_path, "boot", lambda: 100.0)
    fence.guard([guarded("a", 10.0), guarded("b", 20.0)])
    (tmp_path / watchdog.MARKS).mkdir()
    for name in ("a.1", "b.1"):
        (tmp_path / watchdog.MARKS / name).touch()
    fence.forget({"b.1"})
    assert fence.wait() == 20.0
    assert (watchdog.was_ended(tmp_path, "a.1"), watchdog.was_ended(tmp_path, "b.1")) == (False, True)
    fence.write()
    known = watchdog.read(tmp_path / watchdog.FILE, "boot")
    assert known is not None
    assert known.limits == {"b.1": 20.0}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_space_for_another_file_does_not_hide_the_contact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(path: Path, content: bytes, *, lasting: bool) -> None:
        raise OSError(number, "full")

    fence = Fence(tmp_path, "boot", lambda: 200.0)
    fence.guard([guarded("a", 10.0)])
    fence.write()
    monkeypatch.setattr("retinue.agent.fencing.lease.replace_file", full)
    fence.guard([guarded("b", 20.0)])
    fence.confirm(150.0)
    fence.write()
    assert watchdog.read(tmp_path / watchdog.FILE, "boot") == watchdog.Guarded(
        "boot", 200.0, {"a.1": 10.0, "b.1": 20.0}
    )


@pytest.mark.parametrize("content", [b"", b"not json", watchdog.Guarded("boot", 5.0).encode()])
def test_a_file_that_was_damaged_is_whole_before_the_next_one_is_released(tmp_path: Path, content: bytes) -> None:
    seen: list[watchdog.Guarded | None] = []
    path = tmp_path / watchdog.FILE
    fence = Fence(tmp_path, "boot", lambda: 100.0, lambda _: seen.append(watchdog.read(path, "boot")))
    fence.guard([guarded("a", 10.0)])
    process = Process(5, 6)
    asyncio.run(fence.pin("a.1", FenceTarget(process)))
    path.write_bytes(content)
    asyncio.run(fence.pin("a.1", FenceTarget(process)))
    assert seen == [watchdog.Guarded("boot", 100.0, {"a.1": 10.0}, {"a.1": process})] * 2


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fence.json"
    fence = Fence(tmp_path, "boot", lambda: 1.0)
    fence.guard([guarded("b", 0.0)])
    fence.confirm(1.0)
    fence.write()
    assert not path.exists()


def test_what_is_released_is_known_to_a_watchdog_first(tmp_path: Path) -> None:
    now = 100.0
    seen: list[watchdog.Guarded | None] = []
    fence = Fence(
        tmp_path, "boot", lambda: now, lambda directory: seen.append(watchdog.read(directory / watchdog.FILE, "boot"))
    )
    fence.guard([guarded("a", 10.0), guarded("b", 0.0)])
    asyncio.run(fence.pin("a.1", FenceTarget(Process(5, 6))))
    assert seen == [watchdog.Guarded("boot", 100.0, {"a.1": 10.0}, {"a.1": Process(5, 6)})]
    # What is not guarded needs none.
    asyncio.run(fence.pin("b.1", FenceTarget(Process(7, 8))))
    assert len(seen) == 1
    now = 110.0
    with pytest.raises(OverdueError):
        asyncio.run(fence.pin("a.1", FenceTarget(Process(5, 6))))
    (tmp_path / watchdog.MARKS).mkdir()
    (tmp_path / watchdog.MARKS / "a.1").touch()
    fence.forget({"b.1"})
    fence.write()
    assert watchdog.read(tmp_path / watchdog.FILE, "boot") == watchdog.Guarded("boot", 100.0)
    assert not watchdog.was_ended(tmp_path, "a.1")


@pytest.mark.parametrize(
    ("now", "overdue"), [(110.9, set()), (111.1, {"a.1"}), (132.9, {"a.1"}), (133.1, {"a.1", "b.1"})]
)
def test_a_watchdog_gives_the_agent_a_little_time(now: float, overdue: set[str]) -> None:
    processes = {name: Process(number, 1) for number, name in enumerate(("a.1", "b.1", "c.1"))}
    known = watchdog.Guarded("boot", 100.0, {"a.1": 10.0, "b.1": 30.0, "d.1": 1.0}, processes)
    assert known.overdue(now).keys() == overdue
    assert known.pause() == 1.0 / watchdog.LOOKS


async def test_contact_is_written_when_it_matters_to_a_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.agent.fencing.lease.RETRY", 0.01)
    path = tmp_path / "fence.json"
    fence = Fence(tmp_path, "boot", lambda: 100.0)
    keeping = asyncio.create_task(fence.keep_written())

    async def contact(expected: float) -> None:
        await eventually(
            lambda: watchdog.read(path, "boot"), lambda known: known is not None and known.contact == expected
        )

    fence.guard([guarded("a", 10.0)])
    await contact(100.0)
    # A heartbeat later the watchdog needs no update.
    fence.confirm(100.1)
    assert not fence.matters()
    fence.confirm(100.3)
    await contact(100.3)
    # A disk that refuses ends nothing, and is tried again.
    path.unlink()
    path.mkdir()
    fence.confirm(103.0)
    await asyncio.sleep(0)
    path.rmdir()
    await contact(103.0)
    keeping.cancel()
