"""Names of namespaces: one per agent and session, and never another agent's."""

from __future__ import annotations

import pytest

from retinue.agent.network.core.labels import agent_label
from retinue.agent.network.errors import InvalidNetworkError
from retinue.agent.network.links import SessionNetworks
from retinue.agent.network.rules_guard import Guard
from tests.unit.agent.network.topologies import SESSION


def test_a_short_agent_id_is_readable() -> None:
    assert (
        SessionNetworks("node-1", None, Guard("test")).namespace(SESSION)
        == "rt-node-1-0190c8f47d2e7c3a9b1f2a5d8e4c6f01"
    )
    assert agent_label("exactly-twenty-chars") == "exactly-twenty-chars"
    assert agent_label("-a-") == "-a-"


def test_long_agent_ids_stay_apart() -> None:
    labels = {agent_label(f"a-rather-long-name-of-agent-{number}") for number in range(100)}
    assert len(labels) == 100
    assert {len(label) for label in labels} == {20}


@pytest.mark.parametrize("agent_id", ["", "A", "a/b", "a.b", "a\n", "..", "ä"])
def test_other_agent_ids_are_refused(agent_id: str) -> None:
    with pytest.raises(InvalidNetworkError, match="agent id"):
        SessionNetworks(agent_id, None, Guard("test"))


@pytest.mark.parametrize("session_id", ["", "..", "x", SESSION + "\n", SESSION.upper()])
def test_other_session_ids_are_refused(session_id: str) -> None:
    with pytest.raises(InvalidNetworkError, match="session id"):
        SessionNetworks("a", None, Guard("test")).namespace(session_id)
