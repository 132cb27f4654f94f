"""The fixture of tests that are about containers alone: runtimes of them at one place, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.docker.engine import IMAGE
from tests.integration.agent.runtime.conftest import Contract, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.agent.conftest import Place
    from tests.integration.agent.docker.engine import TestEngine


@pytest.fixture
async def contract(place: Place, engine: TestEngine) -> AsyncIterator[Contract]:
    contract = Contract(place, Kind("docker", IMAGE, "docker/attempts", engine))
    yield contract
    if contract.current is not None:
        await contract.current.close()
    engine.remove_containers(place.agent_id)
