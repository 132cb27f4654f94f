"""What the tests of networks need of the machine."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.integration.agent.network.nodes import two_nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.agent.network.nodes import Node


@pytest.fixture(autouse=True, scope="session")
def needs() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes network namespaces")
    for program in ("bridge", "ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes for the tests of a module that leave them as they are."""
    async with two_nodes() as nodes:
        yield nodes
