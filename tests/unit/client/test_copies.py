"""What the library gives its callers goes to other processes and comes back the same."""

from __future__ import annotations

import copy
import pickle

import grpc
import pytest

import retinue.client
from retinue.client import errors
from retinue.client.aio import Completed, Copied, FieldViolation, LogChunk, Printed, RetinueError, SessionEnded
from retinue.client.kernel.code import CodeResult
from tests.unit.client.journal import session

_CALL = {
    "code": grpc.StatusCode.NOT_FOUND,
    "reason": "GONE",
    "metadata": {"id": "s"},
    "violations": (FieldViolation("spec.name", "is long"),),
    "request_id": "r",
    "retry_after": 1.5,
}


def _of(kind: type[RetinueError]) -> RetinueError:
    if issubclass(kind, errors.CallError):
        return kind("wrong", **_CALL)  # type: ignore[arg-type]  # by their names
    return kind("over", session()) if kind is SessionEnded else kind("wrong")


_ERRORS = [
    found
    for name in retinue.client.__all__
    if isinstance(found := getattr(retinue.client, name), type) and issubclass(found, RetinueError)
]
_VALUES = (
    Completed(session(), b"out", 3),
    Copied(1, 2, (("a", "b"),), ()),
    FieldViolation("f", "d"),
    LogChunk("main1", 0, b"x", stream="stdout"),
    Printed(b"x", errors=True),
    CodeResult("r", "OK", 0, "out", "", [], "1", "", "", ()),
)


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.copy, copy.deepcopy])  # noqa: S301  # our own
@pytest.mark.parametrize("value", [*map(_of, _ERRORS), *_VALUES], ids=lambda value: type(value).__name__)
def test_a_copy_is_the_same(value: object, again: object) -> None:
    assert callable(again)
    made = again(value)
    assert type(made) is type(value)
    if isinstance(value, Exception):
        assert (str(made), vars(made)) == (str(value), vars(value))
    else:
        assert made == value


def test_all_errors_are_tried() -> None:
    tree = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RetinueError)}
    assert set(_ERRORS) == tree


def test_the_text_of_an_error_says_which_field_is_wrong_and_why() -> None:
    wrong = (FieldViolation("spec.name", "is long"), FieldViolation("spec.type", "is missing"))
    error = errors.InvalidRequest("spec.name is long", violations=wrong)
    assert str(error) == "spec.name is long; spec.type: is missing"
