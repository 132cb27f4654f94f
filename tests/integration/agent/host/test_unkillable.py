"""Kernels that do not end although they were killed: reported, killed again, and cleared when they are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.conditions import Conditions
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.process.sandboxes import Kernels
from retinue.agent.runtime import unkillable
from retinue.agent.runtime.options import Shared
from retinue.agent.runtime.unkillable import MESSAGE, KilledAttempts
from retinue.rpc.core.reasons import AgentConditionType
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.process.kernels import spec
from tests.support.eventually import eventually

if TYPE_CHECKING:
    import pytest

    from retinue.agent.host.processes import Process
    from tests.integration.agent.conftest import Place


async def test_what_does_not_end_is_reported_and_killed_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("UNKILLABLE_AFTER", 0.2), ("FIRST_PAUSE", 0.05), ("MAX_PAUSE", 0.1), ("INTERVAL", 0.02)):
        monkeypatch.setattr(unkillable, name, value)
    kills: list[str] = []
    kill = Kernels.kill

    def ineffective(_kernels: Kernels, attempt_id: str, _init: Process | None) -> None:
        kills.append(attempt_id)

    monkeypatch.setattr(Kernels, "kill", ineffective)
    conditions = Conditions()
    backend = ProcessRuntime(place.options(), Shared(conditions=conditions))
    await backend.open(lambda: None)
    try:
        await backend.prepare(spec("k", "sleep", "1000"), HOSTS)
        await backend.start("k.1")
        await backend.stop("k.1", 0)
        await backend.kill("k.1")
        await eventually(lambda: [each.type for each in conditions.all()] == [AgentConditionType.UNKILLABLE])
        await eventually(lambda: len(kills) > 3)
        observed = backend.observe()["k.1"]
        assert (observed.phase, observed.message) == (Phase.STOPPING, MESSAGE)
        monkeypatch.setattr(Kernels, "kill", kill)
        await eventually(lambda: backend.observe()["k.1"].phase is Phase.EXITED)
        await eventually(lambda: conditions.all() == ())
        assert backend.observe()["k.1"].message == "it was stopped"
        await backend.remove("k.1")
    finally:
        await backend.close()


def test_pauses_between_kills_grow() -> None:
    now = 0.0
    conditions = Conditions()
    attempts = KilledAttempts(conditions, "PROCESS", lambda: now)
    attempts.begin("a.1")
    times = []
    while now < 300:
        times += [now for _ in attempts.due()]
        now += 1.0
    assert times[:5] == [2, 6, 14, 30, 62]
    assert times[5:8] == [122, 182, 242]
    assert attempts.report() == ["a.1"]
    attempts.end("a.1")
    assert conditions.all() == ()


def test_what_is_paused_is_no_defect_of_the_node() -> None:
    now, paused = 0.0, {"a.1"}
    conditions = Conditions()
    attempts = KilledAttempts(conditions, "DOCKER", lambda: now, paused.__contains__)
    attempts.begin("a.1")
    attempts.begin("b.1")
    now = 100.0
    assert attempts.report() == ["b.1"]
    paused.clear()
    assert attempts.report() == ["a.1", "b.1"]
