"""The option that runs the vectors of another directory."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--vectors DIR`."""
    parser.addoption(
        "--vectors", metavar="DIR", default=None, help="directory with vector files to run in place of tests/vectors"
    )
