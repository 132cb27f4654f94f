"""Commands of sandboxes and containers start where those of every runtime do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.directories_contract import *  # noqa: F403  # the tests

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract


@pytest.fixture
def harness(contract: Contract) -> Contract:
    return contract
