"""Errors as they are sent: code, reason, details, and a bounded size."""

from __future__ import annotations

import inspect
import math

import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, RetryInfo

from retinue.manager.domain import errors, preconditions
from retinue.manager.server import lower_errors
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.database import StoreBusy, StoreConflict, StoreUnavailable
from retinue.manager.v1.error_reason_pb2 import ErrorReason
from retinue.rpc.errors import MAX_STATUS_BYTES, MAX_VIOLATIONS, status_of


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
        assert leaf.code in errors.Code


def test_too_many_violations_are_cut() -> None:
    status = status_of(errors.InvalidRequest([(f"field[{number}]", "x" * 1000) for number in range(1000)]))
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
        status = status_of(error)
        assert status.ByteSize() <= MAX_STATUS_BYTES
        assert status.message.isprintable()
        information = ErrorInfo()
        assert status.details[0].Unpack(information)
        assert information.domain == "retinue"
        assert all(value.isprintable() for value in information.metadata.values())


def test_details_that_apply() -> None:
    retry, failure = RetryInfo(), PreconditionFailure()
    assert status_of(errors.Unavailable("x")).details[1].Unpack(retry)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1
    assert status_of(preconditions.InUse("project", "p", "live sessions")).details[1].Unpack(failure)
    assert (failure.violations[0].type, failure.violations[0].subject) == ("IN_USE", "project/p")


@pytest.mark.parametrize(
    "raised", [StoreUnavailable("x"), StoreConflict("x"), StoreBusy("x"), leadership.NotLeader("x")]
)
def test_what_the_database_lacks_may_pass(raised: Exception) -> None:
    assert isinstance(lower_errors.to_api_error(raised), errors.Unavailable)


def test_errors_are_equal_that_are_sent_alike() -> None:
    wrong = errors.InvalidRequest([("spec.name", "is wrong")])
    assert wrong == errors.InvalidRequest([("spec.name", "is wrong")])
    assert wrong != errors.InvalidRequest([("spec.name", "is odd")])
    assert errors.NotFound("session", "a") != errors.NotFound("session", "b")
    assert wrong.with_paths(lambda path: f"specs[1].{path}") == errors.InvalidRequest(
        [("specs[1].spec.name", "is wrong")]
    )


def test_a_bug_is_not_shown() -> None:
    assert lower_errors.to_api_error(ValueError("secret")) is None
    assert lower_errors.to_api_error(TypeError(f"{math.pi}")) is None
