"""Commands of sandboxes and containers are asked to end, and warned, as those of every runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.signals_contract import *  # noqa: F403  # the tests

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract


@pytest.fixture
def harness(contract: Contract) -> Contract:
    return contract
