"""Errors of an API as values: a code, a reason for programs, words for people, and details of closed kinds.

Manager, agent and router raise them wherever a request fails; `rpc/errors.py` makes the status that is sent.
"""

# ruff: noqa: N818  # each name says what the caller learns, and is raised as such

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from retinue.rpc.core.reasons import ErrorReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# In bytes.
MAX_TEXT, MAX_VALUE = 400, 128

Violation: TypeAlias = tuple[str, str]
"""A field path, or whose quota it is, and what is wrong there."""


class Code(IntEnum):
    """The codes of gRPC that errors have, with their numbers: https://grpc.io/docs/guides/status-codes/."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class FieldViolations:
    """Wrong fields of the request."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class QuotaViolations:
    """Quotas in the way."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class UnmetPrecondition:
    """The state of an object is in the way; `subject` names it, as `kernel/main1`."""

    subject: str


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """The seconds after which to try again."""

    seconds: float


Detail: TypeAlias = FieldViolations | QuotaViolations | UnmetPrecondition | RetryDelay


class ApiError(Exception):
    """The root: an error that a caller receives in full. Errors are equal that are sent alike."""

    code: Code
    reason: str
    """A value of `ErrorReason`."""

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        """Takes a text for people and values for programs; what is too long is cut off,
        and control characters are escaped.
        """
        super().__init__(printable(message, MAX_TEXT))
        self.metadata = {key: printable(value, MAX_VALUE) for key, value in (metadata or {}).items()}

    def details(self) -> Sequence[Detail]:
        """Returns what is sent besides code, reason and metadata; each kind of detail at most once."""
        return ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ApiError):
            return NotImplemented
        return self._sent() == other._sent()

    def __hash__(self) -> int:
        return hash((self.code, self.reason, str(self)))

    def _sent(self) -> tuple[object, ...]:
        return (self.code, self.reason, str(self), self.metadata, tuple(self.details()))


class ServiceError(ApiError):
    """An error of any code and reason, of services whose callers are our own."""

    def __init__(self, code: Code, reason: str, message: str, **metadata: str) -> None:
        """Takes the values of the message again in `metadata`, for programs."""
        super().__init__(message, metadata)
        self.code = code
        self.reason = reason


class InvalidRequest(ApiError):
    """Fields are wrong, whatever the state of things."""

    code, reason = Code.INVALID_ARGUMENT, ErrorReason.INVALID_FIELD

    def __init__(self, violations: Sequence[Violation]) -> None:
        """`violations` are field paths and descriptions, at least one; what does not fit is left out."""
        super().__init__("; ".join(dict.fromkeys(f"{path}: {text}" for path, text in violations)))
        self.violations = printable_violations(violations)

    def with_paths(self, moved: Callable[[str], str]) -> InvalidRequest:
        """Returns the same about fields of a larger message; `moved` returns the path of a field there."""
        return InvalidRequest([(moved(path), text) for path, text in self.violations])

    def details(self) -> Sequence[Detail]:
        """Returns the violations."""
        return (FieldViolations(tuple(self.violations)),)


class StreamLimit(ApiError):
    """Too many streams of this kind are open already."""

    code, reason = Code.RESOURCE_EXHAUSTED, ErrorReason.STREAM_LIMIT

    def __init__(self, limit: int | str, what: str = "streams of this kind are open already") -> None:
        super().__init__(f"{limit} {what}", {"limit": str(limit)})


def printable_violations(violations: Sequence[Violation]) -> list[Violation]:
    """Returns violations as they may be sent."""
    return [(printable(what, MAX_VALUE), printable(text, MAX_TEXT // 2)) for what, text in violations]


def printable(text: str, limit: int) -> str:
    """Returns at most `limit` bytes of a text, with control characters as escapes.

    It may be a caller's, and come back to a terminal or a log: it must not be a command there.
    """
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    size = 0
    shown: list[str] = []
    for character in text:
        safe = character if character.isprintable() else f"\\u{ord(character):04x}"
        size += len(safe.encode(errors="replace"))
        if size > limit:
            return "".join(shown) + "…"
        shown.append(safe)
    return "".join(shown)
