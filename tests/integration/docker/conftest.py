"""An engine for the tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.conftest import place
from tests.integration.docker.engine import TestEngine, install

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["engine", "place"]


@pytest.fixture(scope="session")
def engine() -> Iterator[TestEngine]:
    install()
    engine = TestEngine()
    try:
        engine.start()
        engine.make_image()
        yield engine
    finally:
        engine.stop()
