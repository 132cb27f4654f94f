"""Whole agents that die, over each kind of kernel."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.manager_side import attempt
from tests.integration.agent.runtime.conftest import record
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.integration.agent.agent_process import AgentProcess
    from tests.integration.agent.manager_side import Conversation
    from tests.integration.agent.runtime.conftest import Contract, Kind

HELD, RUNNING, EXITED = pb.ATTEMPT_STATE_HELD, pb.ATTEMPT_STATE_RUNNING, pb.ATTEMPT_STATE_EXITED
FAILED = pb.ATTEMPT_STATE_FAILED
WAIT = "while [ ! -e /home/work/go ]; do sleep 0.02; done; touch /home/work/over; exit 7"


async def test_killed_agent_leaves_kernels_and_the_next_adopts_them(
    process: AgentProcess, kind: Kind, contract: Contract
) -> None:
    address = await process.start()
    manager, _channel = await process.converse(address)
    assert kind.name in manager.welcome.available_runtimes
    held = attempt("held", "echo", "early", session_id="one", goal=pb.GOAL_HELD, image=kind.image)
    running = attempt("running", session_id="two", image=kind.image)
    ending = attempt("ending", "sh", "-c", WAIT, session_id="three", image=kind.image)
    await manager.snapshot(held, running, ending)
    await manager.until_state("held.1", HELD)
    await manager.until_state("running.1", RUNNING)
    await manager.until_state("ending.1", RUNNING)
    before = record(contract, "running.1")
    assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    scratch = contract.place.directory / "scratch"
    (scratch / "ending.1" / "go").touch()
    await eventually((scratch / "ending.1" / "over").exists)

    address = await process.start()
    manager, _channel = await process.converse(address)
    assert manager.statuses["held.1"].state == HELD
    assert manager.statuses["running.1"].state == RUNNING
    assert record(contract, "running.1")["init"] == before["init"]
    held.goal = pb.GOAL_RUNNING
    await manager.snapshot(held, running, ending)
    status = await manager.until_state("ending.1", EXITED)
    assert (status.exit_code, status.reason) == (7, "EXITED")
    status = await manager.until_state("held.1", EXITED)
    assert (status.exit_code, status.log_size) == (0, 6)
    logs = [piece.data async for piece in manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id="held.1", offset=2))]
    assert b"".join(logs) == b"rly\n"
    await manager.change(removed_attempt_ids=["held.1", "running.1", "ending.1"])
    await manager.until(lambda: manager.removed == {"held.1", "running.1", "ending.1"})
    assert await process.end(signal.SIGTERM) == 0
    assert not contract.left()


def is_recorded(contract: Contract, attempt_id: str) -> bool:
    return (contract.place.directory / "state" / contract.kind.records / attempt_id / "record.json").exists()


def has_its_home(contract: Contract, attempt_id: str) -> bool:
    return (contract.place.directory / "scratch" / attempt_id).exists()


def is_past(*phases: Phase) -> Callable[[Contract, str], bool]:
    def look(contract: Contract, attempt_id: str) -> bool:
        names = {phase.value for phase in phases}
        return is_recorded(contract, attempt_id) and record(contract, attempt_id)["phase"] not in names

    return look


POINTS: dict[str, Callable[[Contract, str], bool]] = {
    "asked": lambda _contract, _attempt_id: True,
    "recorded": is_recorded,
    "with a home": has_its_home,
    "released": is_past(Phase.CREATING, Phase.CREATED),
}
"""How far the first of some attempts has come when their agent is killed: at the least."""


async def test_killed_at_any_point_of_creating(process: AgentProcess, kind: Kind, contract: Contract) -> None:
    """Whatever was under way when the agent died, each command ran once or not at all,
    and the next agent reports which. That one is killed as well, with others under way.
    """
    manager, channel = await process.converse(await process.start())
    await manager.snapshot()
    for number, reached in enumerate(POINTS.values()):
        names = [f"k{number}{letter}" for letter in "abcd"]
        wanted = [attempt(name, "sh", "-c", "echo once; exit 4", session_id=name, image=kind.image) for name in names]
        await manager.change(attempts=wanted)
        await eventually(partial(is_any, reached, contract, names))
        await process.end(signal.SIGKILL)
        await channel.close()  # type: ignore[attr-defined]
        manager, channel = await process.converse(await process.start())
        await manager.snapshot(*wanted)
        await check_ends(manager, names)
        assert not contract.left()


def is_any(reached: Callable[[Contract, str], bool], contract: Contract, names: Sequence[str]) -> bool:
    return any(reached(contract, f"{name}.1") for name in names)


async def check_ends(manager: Conversation, names: Sequence[str]) -> None:
    """Checks that each attempt has run to its end or not at all, and has them removed."""
    for name in names:
        status = await manager.until_state(f"{name}.1", EXITED, FAILED)
        request = pb.StreamLogsRequest(attempt_id=f"{name}.1")
        text = b"".join([piece.data async for piece in manager.stub.StreamLogs(request)])
        if status.state == EXITED:
            assert (status.exit_code, text) == (4, b"once\n")
        else:
            assert (status.reason, text) == ("START_FAILED", b"")
            assert not status.HasField("exit_code")
    await manager.change(removed_attempt_ids=[f"{name}.1" for name in names])
    await manager.until(lambda: len(manager.removed) == len(names))
