"""Virtual machines pass the suite that every runtime passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.runtime_contract import *  # noqa: F403  # the tests

if TYPE_CHECKING:
    from tests.integration.agent.vm.conftest import Vms


@pytest.fixture
def harness(vms: Vms) -> Vms:
    return vms
