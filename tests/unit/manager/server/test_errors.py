"""Errors as they are sent: code, reason, details, and a bounded size."""

from __future__ import annotations

import inspect
import math

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, RetryInfo

from retinue.manager.server import errors, lower_errors, preconditions
from retinue.manager.store.fleet import agents
from retinue.manager.store.journal import journal, requests
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.database import StoreConflict, StoreUnavailable
from retinue.manager.v1.error_reason_pb2 import ErrorReason
from retinue.rpc.errors import MAX_STATUS_BYTES, MAX_VIOLATIONS


def leaves() -> list[type[errors.ApiError]]:
    found = [
        item
        for module in (errors, preconditions)
        for _, item in inspect.getmembers(module, inspect.isclass)
        if issubclass(item, errors.ApiError)
    ]
    return [item for item in found if hasattr(item, "code") and hasattr(item, "reason")]


def test_every_reason_is_in_the_contract() -> None:
    assert len(leaves()) > 20
    for leaf in leaves():
        assert f"ERROR_REASON_{leaf.reason}" in ErrorReason.keys()  # noqa: SIM118  # an enum wrapper, not a dict
        assert leaf.code is not grpc.StatusCode.OK


def test_too_many_violations_are_cut() -> None:
    status = errors.InvalidRequest([(f"field[{number}]", "x" * 1000) for number in range(1000)]).status()
    assert status.ByteSize() <= MAX_STATUS_BYTES
    request = BadRequest()
    assert status.details[1].Unpack(request)
    assert 1 <= len(request.field_violations) <= MAX_VIOLATIONS


@pytest.mark.attack("log-injection")
@pytest.mark.parametrize("text", ["é" * 10_000, "\x1b[31m" * 1000, "\n" * 5000, "\U0001f600" * 5000])
def test_text_of_callers_is_bounded_and_harmless(text: str) -> None:
    raised: list[errors.ApiError] = [
        errors.NotFound(text, text),
        errors.NameTaken(text, text),
        preconditions.InUse(text, text, text),
        errors.InvalidRequest([(text, text)] * 100),
        errors.ProjectDenied(text),
    ]
    for error in raised:
        status = error.status()
        assert status.ByteSize() <= MAX_STATUS_BYTES
        assert status.message.isprintable()
        information = ErrorInfo()
        assert status.details[0].Unpack(information)
        assert information.domain == "retinue"
        assert all(value.isprintable() for value in information.metadata.values())


def test_details_that_apply() -> None:
    retry, failure = RetryInfo(), PreconditionFailure()
    assert errors.Unavailable("x").status().details[1].Unpack(retry)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1
    assert preconditions.InUse("project", "p", "live sessions").status().details[1].Unpack(failure)
    assert (failure.violations[0].type, failure.violations[0].subject) == ("IN_USE", "project/p")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (StoreUnavailable("x"), "UNAVAILABLE"),
        (StoreConflict("x"), "UNAVAILABLE"),
        (leadership.NotLeader("x"), "UNAVAILABLE"),
        (journal.RevisionCompacted(3), "REVISION_COMPACTED"),
        (journal.RevisionInFuture(3), "REVISION_IN_FUTURE"),
        (journal.RevisionLost("x"), "REVISION_LOST"),
        (journal.ReaderTooSlow(3), "READER_TOO_SLOW"),
        (requests.RequestIdReused("x"), "REQUEST_ID_REUSED"),
        (agents.JoinRefused("x"), "JOIN_TOKEN_INVALID"),
        (agents.AgentIdInUse("x"), "AGENT_ID_IN_USE"),
        (agents.AgentRevoked("x"), "AGENT_REVOKED"),
    ],
)
def test_errors_of_the_store_are_reported(raised: Exception, reason: str) -> None:
    translated = lower_errors.to_api_error(raised)
    assert translated is not None
    assert translated.reason == reason


def test_a_bug_is_not_shown() -> None:
    assert lower_errors.to_api_error(ValueError("secret")) is None
    assert lower_errors.to_api_error(TypeError(f"{math.pi}")) is None
