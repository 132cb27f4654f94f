"""Errors of an API as callers receive them: a gRPC status with `google.rpc` details, within what metadata carries."""

# ruff: noqa: N818  # each name says what the caller learns, and is raised as such

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from retinue.rpc.core.reasons import ErrorReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.message import Message

DOMAIN = "retinue"
MAX_VIOLATIONS = 20
# Details travel as metadata, of which clients take 8 KiB.
MAX_STATUS_BYTES = 4096
# In bytes.
MAX_TEXT, MAX_VALUE = 400, 128

# Field path and what is wrong there.
Violation = tuple[str, str]


class ApiError(Exception):
    """The root: an error that a caller receives in full. `reason` is a value of `ErrorReason`."""

    code: grpc.StatusCode
    reason: str

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        """Takes a text for people and values for programs; what is too long is cut off,
        and control characters are escaped.
        """
        super().__init__(printable(message, MAX_TEXT))
        self.metadata = {key: printable(value, MAX_VALUE) for key, value in (metadata or {}).items()}

    def details(self) -> Sequence[Message]:
        """Returns what is sent besides code, reason and metadata; each kind of detail at most once."""
        return ()

    def status(self) -> Status:
        """Returns the error as it is sent, within MAX_STATUS_BYTES."""
        code: int = self.code.value[0]
        status = Status(code=code, message=str(self))
        information = ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        for detail in (information, *self.details()):
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        return status


class InvalidRequest(ApiError):
    """Fields are wrong, whatever the state of things."""

    code, reason = grpc.StatusCode.INVALID_ARGUMENT, ErrorReason.INVALID_FIELD

    def __init__(self, violations: Sequence[Violation]) -> None:
        """`violations` are field paths and descriptions, at least one; what does not fit is left out."""
        super().__init__("; ".join(dict.fromkeys(f"{path}: {text}" for path, text in violations)))
        self.violations = [(printable(path, MAX_VALUE), printable(text, MAX_TEXT // 2)) for path, text in violations]

    def details(self) -> Sequence[Message]:
        """Returns the violations."""
        request, size = BadRequest(), 0
        for path, text in self.violations[:MAX_VIOLATIONS]:
            violation = BadRequest.FieldViolation(field=path, description=text)
            size += violation.ByteSize() + 4
            if size > MAX_STATUS_BYTES - 1024:
                break
            request.field_violations.append(violation)
        return (request,)


class StreamLimit(ApiError):
    """Too many streams of this kind are open already."""

    code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorReason.STREAM_LIMIT

    def __init__(self, limit: int | str, what: str = "streams of this kind are open already") -> None:
        super().__init__(f"{limit} {what}", {"limit": str(limit)})


def printable(text: str, limit: int) -> str:
    """Returns at most `limit` bytes of a text, with control characters as escapes.

    It may be a caller's, and come back to a terminal or a log: it must not be a command there.
    """
    size = 0
    shown: list[str] = []
    for character in text:
        safe = character if character.isprintable() else f"\\u{ord(character):04x}"
        size += len(safe.encode(errors="replace"))
        if size > limit:
            return "".join(shown) + "…"
        shown.append(safe)
    return "".join(shown)
