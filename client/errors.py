"""The errors of the client, as one tree.

RetinueError
├── UsageError              a value given to the library makes no sense; nothing was sent
├── CallError               the server, or the connection to it, refused a call
│   ├── InvalidRequest      INVALID_ARGUMENT; `violations` name the fields
│   ├── Unauthenticated     UNAUTHENTICATED
│   ├── PermissionDenied    PERMISSION_DENIED
│   ├── NotFound            NOT_FOUND
│   ├── AlreadyExists       ALREADY_EXISTS
│   ├── FailedPrecondition  FAILED_PRECONDITION
│   ├── Aborted             ABORTED, for instance a changed etag
│   ├── OutOfRange          OUT_OF_RANGE: a revision or an offset that is not there
│   ├── ResourceExhausted   RESOURCE_EXHAUSTED: a quota, or a reader that was too slow
│   ├── Unavailable         UNAVAILABLE: try again later
│   ├── DeadlineExceeded    DEADLINE_EXCEEDED
│   └── ServerFault         INTERNAL, UNKNOWN and all others
├── ClientClosed            the client was closed while it was waited for
├── TransferError           a file cannot be copied
├── SessionEnded            a session ended before it reached the awaited state
└── WaitTimeout             what was waited for did not come in time
"""

# the names say what happened, as those of the status codes do
# ruff: noqa: N818  # the names say what happened, as those of the status codes do
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc

    from retinue.manager.v1 import session_pb2

REQUEST_ID_KEY = "x-request-id"
"""Metadata key under which a call and its answer carry the id of the call."""


class RetinueError(Exception):
    """Root of all errors of the library."""


class UsageError(RetinueError):
    """A value given to the library makes no sense; nothing was sent."""


class ClientClosed(RetinueError):
    """The client, or the stream, was closed here while a task or thread waited for it."""


class TransferError(RetinueError):
    """A file cannot be copied; the text says which, and why."""


class WaitTimeout(RetinueError):
    """The awaited state or answer did not come in time."""


class SessionEnded(RetinueError):
    """A session ended before it reached the awaited state."""

    def __init__(self, message: str, session: session_pb2.Session) -> None:
        """`session` is as it was at the end."""
        super().__init__(message)
        self.session = session

    def __reduce__(self) -> tuple[type[SessionEnded], tuple[str, session_pb2.Session]]:
        """Says how it is made again: process pools and task queues send errors to other processes."""
        return type(self), (str(self), self.session)


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field of a request, or one quota that it exceeds: its path, or whose quota (`users/ann`),
    and what is wrong there.
    """

    field: str
    description: str


class CallError(RetinueError):
    """The server, or the connection to it, refused a call.

    `code` is the gRPC status code (None when there was no answer), `reason` an UPPER_SNAKE word of the server (empty
    when the answer came from another program), `metadata` its details, `violations` the wrong fields or the quotas
    exceeded, `request_id` what to look for in the server's log, `retry_after` seconds to wait or None.
    """

    def __init__(  # the plain values of one answer
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: tuple[FieldViolation, ...] = (),
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        """The values of one answer; what it did not say is empty."""
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = violations
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Returns what is wrong, with each field that the message does not speak of."""
        return "; ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """Returns the message, and a line for each wrong field that it does not speak of."""
        wrong = (each for each in self.violations if each.description not in self.message)
        return [self.message, *(f"{each.field}: {each.description}" for each in wrong)]


class InvalidRequest(CallError):
    """The request is wrong, whatever the state of the system."""


class Unauthenticated(CallError):
    """There are no credentials, or they are not good."""


class PermissionDenied(CallError):
    """The caller may not do that."""


class NotFound(CallError):
    """There is no such thing, or none that the caller may read."""


class AlreadyExists(CallError):
    """The name is taken."""


class FailedPrecondition(CallError):
    """The state of the thing forbids it."""


class Aborted(CallError):
    """The thing has changed since it was read."""


class OutOfRange(CallError):
    """A revision or an offset that is not there."""


class ResourceExhausted(CallError):
    """A quota is used up, or a reader was too slow."""


class Unavailable(CallError):
    """The server cannot be reached or cannot answer now."""


class DeadlineExceeded(CallError):
    """The call took too long."""


class ServerFault(CallError):
    """A bug of the server, or an answer that is none."""
