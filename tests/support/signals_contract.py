"""How commands are asked to end, and warned before: the same for every runtime whose kernels have a shell.

A runtime takes part by a module that provides the fixture `harness` and imports the tests from here.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from signal import Signals
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase, TimeWarning
from retinue.agent.kernel.core.signals import Delivery, Target
from tests.support.eventually import NEVER
from tests.support.runtime_contract import HOSTS

if TYPE_CHECKING:
    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.runtime.contract import Runtime
    from tests.support.runtime_contract import Harness

TRAINER = "trap 'echo asked; sleep 0.3; echo saved; exit' {}; echo on; while :; do sleep 0.02; done"


async def printed(runtime: Runtime, until: str = "") -> str:
    """Returns what the command printed, to its end or until there is a text."""
    text = ""
    async with contextlib.aclosing(runtime.output("k.1").stream(0, follow=True)) as pieces:
        async for piece in pieces:
            text += piece.data.decode()
            if until and until in text:
                break
    return text


async def running(harness: Harness, spec: AttemptSpec) -> Runtime:
    runtime = await harness.open()
    await runtime.prepare(spec, HOSTS)
    assert (await harness.until("k.1", Phase.CREATED, Phase.FAILED)).phase is Phase.CREATED
    await runtime.start("k.1")
    await printed(runtime, "on\n")
    return runtime


@pytest.mark.parametrize(("stop_signal", "name"), [(None, "TERM"), (Signals.SIGUSR2, "USR2")])
async def test_what_a_shell_runs_is_asked_to_end_and_has_the_grace(
    harness: Harness, stop_signal: Signals | None, name: str
) -> None:
    """The shell does not survive the signal; what it runs saves its work, though its agent is restarted meanwhile."""
    # Shells say when a signal ends what they run.
    script = f'sh -c "{TRAINER.format(name)}" 2>/dev/null; true'
    spec = replace(harness.spec("k", "sh", "-c", script), stops_all=True, stop_signal=stop_signal)
    runtime = await running(harness, spec)
    await runtime.stop("k.1", NEVER)
    await printed(runtime, "asked\n")
    runtime = await harness.open()
    ended = await harness.until("k.1", Phase.EXITED)
    assert (ended.reason, await printed(runtime)) == ("STOPPED", "on\nasked\nsaved\n")
    assert ended.exit_code == 128 + (stop_signal or Signals.SIGTERM)
    await runtime.remove("k.1")


@pytest.mark.parametrize("target", [Target.COMMAND, Target.STARTED])
async def test_a_command_is_warned_before_its_time_limit(
    harness: Harness, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only whom it is for: the other has no trap, and would end."""
    script = "trap 'echo warned' USR1; (trap '' USR1; exec sleep 1000) & echo on; wait; kill $!"
    if target is Target.STARTED:
        script = f'sh -c "{TRAINER.format("USR1")}" 2>/dev/null; exit 3'
    warning = TimeWarning(Delivery(Signals.SIGUSR1, target), 10 * NEVER)
    await running(harness, replace(harness.spec("k", "sh", "-c", script), warning=warning))
    # The time comes once the traps are there, and while the agent is away.
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 10 * NEVER)
    runtime = await harness.open()
    ended = await harness.until("k.1", Phase.EXITED)
    expected = (0, "on\nwarned\n") if target is Target.COMMAND else (3, "on\nasked\nsaved\n")
    assert (ended.exit_code, await printed(runtime)) == expected
    await runtime.remove("k.1")
