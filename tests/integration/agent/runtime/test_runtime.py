"""Sandboxes and containers pass the suite that every runtime passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.runtime_contract import *  # noqa: F403  # the tests

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract


@pytest.fixture
def harness(contract: Contract) -> Contract:
    return contract
