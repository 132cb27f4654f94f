"""A step of the link fails once, on either side: both come to agree all the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from retinue.manager.domain.session.states import SessionState
from retinue.rpc import failpoints
from retinue.rpc.failpoints import Action, Failpoints
from tests.link.virtual_time import run
from tests.unit.link.test_both_sides import COMMANDS, bring_to_rest, world

if TYPE_CHECKING:
    from pathlib import Path

DOWN, UP = ("hello", "snapshot", "change", "ack", "heartbeat"), ("welcome", "report", "heartbeat")
POINTS = (
    *(f"link.write.{kind}" for kind in DOWN),
    *(f"sync.receive.{kind}" for kind in DOWN[1:]),
    *(f"link.read.{kind}" for kind in UP),
    *(f"sync.send.{kind}" for kind in UP),
)


@pytest.mark.parametrize("action", [Action.ERROR, Action.LOST, Action.DELAY, Action.CANCEL])
@pytest.mark.parametrize("point", POINTS)
def test_one_failure_at_each_step(point: str, action: Action, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "active", Failpoints(tmp_path))
    armed = tmp_path / "armed" / f"{point}={action}"

    async def live() -> None:
        async with world() as there:
            armed.touch()
            ids = [there.place(*command) for command in COMMANDS]
            await asyncio.sleep(8.0)
            there.store.terminate(ids[2])
            # Nothing is healed: both sides do it by themselves.
            await bring_to_rest(there, heal=False)
            assert {there.store.state(key) for key in ids} == {SessionState.TERMINATED}
            assert [there.agent.journal.started[key] for key in ids] == [1, 1, 1]
            assert not there.agent.attempts

    run(live())
    assert not armed.exists(), "the step was never taken"
