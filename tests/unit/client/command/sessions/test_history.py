"""Events of sessions as lines."""

from __future__ import annotations

from retinue.client.command.admin.agents import _state as agent_state
from retinue.client.command.sessions.following import event_line
from retinue.manager.v1 import fleet_service_pb2, session_pb2

SESSION = "0123456789abcdef"


def line(**change: object) -> str:
    event = session_pb2.SessionEvent(revision=7, session_id=SESSION, **change)  # type: ignore[arg-type]
    return event_line(event).removeprefix("7  01234567  ")


def test_why_it_waits_needs_no_state() -> None:
    held = session_pb2.ReasonChanged(reason="HELD", message="it is held")
    assert line(reason_changed=held) == "HELD: it is held"
    lost = session_pb2.Condition(type="AGENT_LOST", message="agent n1 is lost")
    change = session_pb2.ReasonChanged(conditions=[lost])
    assert line(reason_changed=change) == "AGENT_LOST: agent n1 is lost"


def test_a_kernel_without_an_agent_is_nowhere() -> None:
    moved = session_pb2.KernelMove(hostname="main1", to_state=session_pb2.KERNEL_STATE_CANCELLED)
    assert line(kernel_moved=moved) == "main1 CANCELLED"
    moved.agent = "n1"
    assert line(kernel_moved=moved) == "main1 CANCELLED on n1"


def test_a_node_drains_while_kernels_are_there() -> None:
    agent = fleet_service_pb2.Agent(state=fleet_service_pb2.AGENT_STATE_ALIVE, drained=True, kernels=2)
    assert agent_state(agent) == "ALIVE (draining)"
    agent.kernels = 0
    assert agent_state(agent) == "ALIVE (drained)"
