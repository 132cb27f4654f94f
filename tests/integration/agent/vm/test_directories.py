"""Commands of virtual machines start where those of every runtime do, and where their image says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.directories_contract import *  # noqa: F403  # the tests

if TYPE_CHECKING:
    from tests.integration.agent.docker.engine import TestEngine
    from tests.integration.agent.vm.conftest import Vms


@pytest.fixture
def harness(vms: Vms) -> Vms:
    return vms


async def test_a_command_starts_where_its_image_says(vms: Vms, engine: TestEngine) -> None:
    engine.make_image("directories:there", changes=["WORKDIR /srv/app"])
    vms.engine = engine
    await vms.started(vms.spec("k", "sh", "-c", "pwd; echo done; sleep 1000", image="directories:there"))
    assert await vms.until_printed("k.1", "done\n") == "/srv/app\ndone\n"
