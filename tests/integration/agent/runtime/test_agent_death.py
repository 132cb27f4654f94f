"""Whole agents that die, over each kind of kernel."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.manager_side import attempt
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.integration.agent.reconcile.test_restart import AgentProcess
    from tests.integration.agent.runtime.conftest import Contract, Kind

HELD, RUNNING, EXITED = pb.ATTEMPT_STATE_HELD, pb.ATTEMPT_STATE_RUNNING, pb.ATTEMPT_STATE_EXITED
FAILED = pb.ATTEMPT_STATE_FAILED
WAIT = "while [ ! -e /home/work/go ]; do sleep 0.02; done; touch /home/work/over; exit 7"


async def test_killed_agent_leaves_kernels_and_the_next_adopts_them(
    process: AgentProcess, kind: Kind, contract: Contract
) -> None:
    address = await process.start()
    manager, _channel = await process.converse(address)
    assert kind.name in manager.welcome.backends
    held = attempt("held", "echo", "early", session_id="one", goal=pb.GOAL_HELD, image=kind.image)
    running = attempt("running", session_id="two", image=kind.image)
    ending = attempt("ending", "sh", "-c", WAIT, session_id="three", image=kind.image)
    await manager.snapshot(held, running, ending)
    await manager.until_state("held.1", HELD)
    await manager.until_state("running.1", RUNNING)
    await manager.until_state("ending.1", RUNNING)
    assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    scratch = contract.place.directory / "scratch"
    (scratch / "ending.1" / "go").touch()
    await eventually((scratch / "ending.1" / "over").exists)

    address = await process.start()
    manager, _channel = await process.converse(address)
    assert manager.statuses["held.1"].state == HELD
    assert manager.statuses["running.1"].state == RUNNING
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


@pytest.mark.parametrize("delay", [0.005, 0.05, 0.15, 0.3, 0.6])
async def test_killed_at_any_point_of_creating(
    process: AgentProcess, kind: Kind, contract: Contract, delay: float
) -> None:
    """Whatever was under way when the agent died, each command ran once or not at all,
    and the agent reports which.
    """
    names = [f"k{number}" for number in range(4)]
    wanted = [attempt(name, "sh", "-c", "echo once; exit 4", session_id=name, image=kind.image) for name in names]
    address = await process.start()
    manager, channel = await process.converse(address)
    await manager.snapshot(*wanted)
    await asyncio.sleep(delay)
    await process.end(signal.SIGKILL)
    await channel.close()  # type: ignore[attr-defined]
    address = await process.start()
    manager, _channel = await process.converse(address)
    await manager.snapshot(*wanted)
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
    assert not contract.left()
