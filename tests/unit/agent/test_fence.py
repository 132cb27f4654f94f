"""How long guarded attempts go on without a manager, over restarts of the agent and of the node."""

from __future__ import annotations

from pathlib import Path

from agent.attempts import AttemptSpec, DesiredAttempt, Goal
from agent.reconcile.fence import Fence


def guarded(name: str, seconds: float) -> DesiredAttempt:
    return DesiredAttempt(AttemptSpec(f"{name}.1", "s", name, 1, "main1"), Goal.RUNNING, 5.0, seconds)


def test_time_counts_from_what_was_heard(tmp_path: Path) -> None:
    now = 100.0
    fence = Fence(tmp_path / "fence.json", "boot", lambda: now)
    fence.guard([guarded("a", 10.0), guarded("b", 0.0), guarded("c", 30.0)])
    assert (fence.due(), fence.wait()) == (frozenset(), 10.0)
    now = 108.0
    # What was sent earlier says nothing of what was sent since.
    fence.confirm(104.0)
    fence.confirm(101.0)
    assert fence.wait() == 6.0
    now = 114.0
    assert (fence.due(), fence.wait()) == ({"a.1"}, 20.0)
    fence.forget({"b.1", "c.1"})
    assert fence.due() == frozenset()


def test_an_agent_that_returns_knows_how_late_it_is(tmp_path: Path) -> None:
    now = 100.0
    path = tmp_path / "fence.json"
    fence = Fence(path, "boot", lambda: now)
    fence.guard([guarded("a", 10.0)])
    fence.confirm(100.0)
    fence.write()
    now = 111.0
    assert Fence(path, "boot", lambda: now).due() == {"a.1"}
    # After a restart of the node nothing of it runs.
    assert Fence(path, "other", lambda: now).due() == frozenset()
    path.write_text("not json")
    assert Fence(path, "boot", lambda: now).due() == frozenset()


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fence.json"
    fence = Fence(path, "boot", lambda: 1.0)
    fence.guard([guarded("b", 0.0)])
    fence.confirm(1.0)
    fence.write()
    assert not path.exists()
