"""What `retinue agents get` says of a node that does not come."""

from __future__ import annotations

import re
import time

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from retinue.client.command.admin.agents import agent_facts
from retinue.manager.v1 import fleet_service_pb2 as pb


def heard(state: int, address: str = "", heartbeat: float | None = None) -> str:
    now = time.time()
    agent = pb.Agent(
        id="n1", state=pb.AgentState.ValueType(state), address=address, create_time=Timestamp(seconds=int(now) - 60)
    )
    if heartbeat is not None:
        agent.heartbeat_time.FromMilliseconds(int(1000 * (now - heartbeat)))
    return dict(agent_facts(agent))["heard"]


@pytest.mark.parametrize("state", [pb.AGENT_STATE_JOINING, pb.AGENT_STATE_LOST])
def test_a_node_that_was_never_heard(state: int) -> None:
    assert heard(state) == (
        "never since it was enrolled; its log says why (`cannot announce this node`): "
        "see docs/how-to/troubleshooting.md"
    )
    assert "it listens at 10.0.0.9:7443, where the manager does not reach it" in heard(state, "10.0.0.9:7443")
    assert ", and not since it was enrolled again; its log says why" in heard(state, heartbeat=3600)


def test_a_node_that_was_heard() -> None:
    for state in (pb.AGENT_STATE_ALIVE, pb.AGENT_STATE_LOST):
        assert re.fullmatch(r"[0-9dhms]+", heard(state, "10.0.0.9:7443", 90))


def test_users_are_told_nothing_of_when_it_came() -> None:
    assert dict(agent_facts(pb.Agent(id="n1", state=pb.AGENT_STATE_LOST)))["heard"] == "-"
