"""Null kernels go through the same life as others, and nothing of them exists."""

from __future__ import annotations

import pytest

from retinue.agent.attempts import AttemptSpec, Phase
from retinue.agent.errors import UnknownAttemptError
from retinue.agent.runtime.null import NullRuntime


def spec(command: tuple[str, ...] = ("true",)) -> AttemptSpec:
    return AttemptSpec("k.1", "s", "k", 1, "main1", command=command)


async def test_a_command_ends_as_soon_as_it_is_released() -> None:
    backend, changes = NullRuntime(), []
    await backend.open(lambda: changes.append(1))
    await backend.prepare(spec(), "")
    assert backend.observe()["k.1"].held
    await backend.prepare(spec(), "")
    await backend.start("k.1")
    ended = backend.observe()["k.1"]
    assert (ended.phase, ended.exit_code, ended.start_time) == (Phase.EXITED, 0, ended.end_time)
    await backend.start("k.1")
    await backend.kill("k.1")
    assert backend.observe()["k.1"] is ended
    assert backend.output("k.1").size() == 0
    await backend.remove("k.1")
    await backend.prepare(spec(), "")
    assert not backend.observe()
    assert len(changes) == 3


async def test_without_a_command_it_idles_until_it_is_stopped() -> None:
    backend = NullRuntime()
    await backend.prepare(spec(()), "")
    await backend.start("k.1")
    assert backend.observe()["k.1"].phase is Phase.RUNNING
    await backend.stop("k.1", 10.0)
    assert backend.observe()["k.1"].exit_code == 143
    with pytest.raises(UnknownAttemptError):
        await backend.stop("other.1", 0.0)


async def test_one_that_is_declined_never_ran() -> None:
    backend = NullRuntime()
    await backend.decline(spec(), Phase.FAILED, "NO_ROOM", "there is none")
    declined = backend.observe()["k.1"]
    assert (declined.phase, declined.exit_code, declined.reason) == (Phase.FAILED, None, "NO_ROOM")
