"""The option that runs the vectors of another directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--vectors DIR`."""
    parser.addoption(
        "--vectors", metavar="DIR", default=None, help="directory with vector files to run in place of tests/vectors"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says which vectors of another directory were left out, and why."""
    directory = config.getoption("vectors", default=None)
    if not directory:
        return
    from tests.vectors.cases import read_vectors  # noqa: PLC0415  # only for this
    from tests.vectors.exceptions import exception_of  # noqa: PLC0415  # only for this

    try:
        vectors = list(read_vectors(Path(directory)))
    except ValueError as error:
        terminalreporter.section(str(error))
        return
    left_out = [(vector["id"], why) for vector in vectors if (why := exception_of(vector))]
    terminalreporter.section(f"{len(left_out)} of {len(vectors)} vectors left out on purpose")
    for name, why in left_out:
        terminalreporter.line(f"{name}: {why}")
