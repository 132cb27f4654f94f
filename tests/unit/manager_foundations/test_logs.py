"""What the logs leave out."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest

import retinue.agent.logs
import retinue.manager.logs


def record_of(error: Exception | None) -> logging.LogRecord:
    raised = None if error is None else (type(error), error, None)
    return logging.LogRecord("grpc", logging.ERROR, "", 0, "raised", (), raised)


@pytest.mark.parametrize("module", [retinue.manager.logs, retinue.agent.logs])
def test_a_caller_that_went_away_is_no_error(module: Any) -> None:
    # No types are published for it.
    failed = importlib.import_module("grpc._cython.cygrpc").ExecuteBatchError("failed")
    assert not module.is_no_lost_caller(record_of(failed))
    assert module.is_no_lost_caller(record_of(ValueError("other")))
    assert module.is_no_lost_caller(record_of(None))
