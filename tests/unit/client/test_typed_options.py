from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from retinue.client import UsageError, session_spec
from retinue.client.admin.fleet import ResourceGroups


@pytest.mark.parametrize(
    ("given", "sent"),
    [(2, "2"), (0.5, "0.5"), (1e-7, "0.0000001"), (Decimal("1E+3"), "1000"), ("4g", "4g"), (10**20, "1" + 20 * "0")],
)
def test_amounts_may_be_numbers(given: Any, sent: str) -> None:
    spec = session_spec(type="batch", command=["true"], slots={"cpu": given}, main_slots={"mem": given})
    assert spec.kernel.slots["cpu"] == sent
    assert spec.roles[0].kernel.slots["mem"] == sent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"typ": "batch"}, "unknown option 'typ': did you mean type?"),
        ({"clustersize": 2}, "did you mean cluster_size"),
        ({"frobnicate": 1}, "unknown option 'frobnicate'; there are agent_choice, agents"),
        ({"slots": {"cpu": None}}, "slots['cpu']: expected str or int or float or Decimal, not None"),
        ({"slots": {"cpu": True}}, "slots['cpu']: expected"),
        ({"slots": {1: "2"}}, "a key of slots: expected str, not 1"),
        ({"slots": ["cpu"]}, "slots: expected a mapping, not ['cpu']"),
        ({"environment": {"A": 1}}, "environment['A']: expected str, not 1"),
        ({"priority": "5"}, "priority: expected int, not '5'"),
        ({"priority": True}, "priority: expected int, not True"),
        ({"preemptible": 1}, "preemptible: expected bool, not 1"),
        ({"agents": "node1"}, "agents: expected a list, not 'node1'"),
        ({"agents": [1]}, "agents[0]: expected str, not 1"),
        ({"ports": [("web", 80)]}, "ports[0]: expected 3 or 4 values, not ('web', 80)"),
        ({"ports": [("web", "http", "80", "localhost")]}, "ports[0][2]: expected int, not '80'"),
        ({"ports": ["web"]}, "ports[0]: expected 3 or 4 values, not 'web'"),
        ({"command": "ls -l"}, "a command is a list of arguments, not one text"),
        ({"command": [1]}, "command[0]: expected str, not 1"),
        ({"cluster_size": 2**40}, "an option is out of range"),
        ({"time_limit": float("nan")}, "an option is out of range"),
        ({"earliest_start_time": float("inf")}, "an option is out of range"),
        ({"name": None}, "name: expected str, not None"),
    ],
)
def test_a_wrong_option_is_named(options: Any, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        session_spec(**{"type": "batch", **options})
    assert said in str(raised.value)


async def test_a_wrong_option_of_a_group_is_named() -> None:
    class Channel:
        def __getattr__(self, name: str) -> Any:
            return lambda *_arguments, **_options: None

    wrong: Any = {"egres": "deny"}
    with pytest.raises(UsageError, match="did you mean egress"):
        await ResourceGroups(Channel()).create("gpu", **wrong)  # type: ignore[arg-type]
