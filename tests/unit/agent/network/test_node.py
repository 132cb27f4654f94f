"""How an agent's networks are closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retinue.agent.errors import NetworkError
from retinue.agent.network.node import NodeNetworks


async def none() -> dict[str, object]:
    return {}


async def unknown() -> dict[str, object]:
    raise NetworkError("the namespaces cannot be listed")


@pytest.mark.parametrize(("observed", "remove"), [(none, True), (unknown, False)])
async def test_rules_of_which_the_use_is_not_known_stay(
    caplog: pytest.LogCaptureFixture, observed: Any, remove: bool
) -> None:
    closed: list[bool] = []
    networks: Any = SimpleNamespace(
        paths=SimpleNamespace(close=lambda: None),
        links=SimpleNamespace(observed=observed),
        egress=SimpleNamespace(observed=none),
        guard=SimpleNamespace(close=lambda *, remove: closed.append(remove)),
    )
    await NodeNetworks.close(networks)
    assert closed == [remove]
    assert not any(record.exc_info for record in caplog.records)
