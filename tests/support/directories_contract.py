"""Where commands start: the same for every runtime.

A runtime takes part by a module that provides the fixture `harness` and imports the tests from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.kernel.paths import NO_DIRECTORY
from tests.support.runtime_contract import HOSTS

if TYPE_CHECKING:
    from retinue.agent.attempts import AttemptSpec
    from tests.support.runtime_contract import Harness

MISSING = "/etc/it isn't $(here)"


async def ran(harness: Harness, spec: AttemptSpec) -> tuple[int | None, str]:
    """Returns the exit code of an attempt and what it printed."""
    runtime = await harness.open()
    await runtime.prepare(spec, HOSTS)
    prepared = await harness.until(spec.id, Phase.CREATED, Phase.FAILED)
    assert prepared.phase is Phase.CREATED, prepared.message
    await runtime.start(spec.id)
    ended = await harness.until(spec.id, Phase.EXITED)
    assert ended.reason == "EXITED"
    pieces = [piece.data async for piece in runtime.output(spec.id).stream(0, follow=False)]
    return ended.exit_code, b"".join(pieces).decode()


async def test_a_command_starts_where_it_is_asked_to(harness: Harness) -> None:
    spec = replace(harness.spec("k", "sh", "-c", "pwd; cd; pwd"), working_directory="/etc")
    assert await ran(harness, spec) == (0, "/etc\n/home/work\n")


async def test_a_directory_that_is_not_there_ends_the_kernel(harness: Harness) -> None:
    spec = replace(harness.spec("k", "echo", "started"), working_directory=MISSING)
    code, said = await ran(harness, spec)
    assert (code, MISSING in said, "started" in said) == (NO_DIRECTORY, True, False)


async def test_without_a_command_too(harness: Harness) -> None:
    code, _ = await ran(harness, replace(harness.spec("k"), working_directory=MISSING))
    assert code == NO_DIRECTORY
