"""Commands of virtual machines are asked to end, and warned, as those of every runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.signals_contract import *  # noqa: F403  # the tests

if TYPE_CHECKING:
    from tests.integration.agent.vm.conftest import Vms


@pytest.fixture
def harness(vms: Vms) -> Vms:
    return vms
