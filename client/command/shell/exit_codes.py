"""With which code the program ends: its own errors by kind, else the session's own code."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TYPE_CHECKING

from retinue.client.errors import (
    CallError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    RetinueError,
    SessionEnded,
    Unauthenticated,
    Unavailable,
    UsageError,
    WaitTimeout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.manager.v1 import session_pb2 as pb


class ExitCode(IntEnum):
    """The meanings of the program's own codes."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    TIMEOUT = 5
    UNSCHEDULABLE = 6
    UNAVAILABLE = 7
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


_BY_ERROR: tuple[tuple[type[RetinueError] | tuple[type[RetinueError], ...], ExitCode], ...] = (
    (UsageError, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    ((PermissionDenied, Unauthenticated), ExitCode.DENIED),
    (WaitTimeout, ExitCode.TIMEOUT),
    (ResourceExhausted, ExitCode.UNSCHEDULABLE),
    (Unavailable, ExitCode.UNAVAILABLE),
)
_LARGEST_CODE = 255
# A wrong token, whatever the code that its answer has.
_WRONG_TOKENS = "TOO_MANY_WRONG_TOKENS"
# It may work in a moment: only the time to wait was too short.
_TOO_MANY_CALLS = "TOO_MANY_CALLS"


def of_error(error: RetinueError, environment: Mapping[str, str] = os.environ) -> int:
    """Returns the code for an error.

    `RETINUE_EXIT_ERROR`, a number from 1 to 255, takes the place of all but that of wrong usage, so that a script can
    distinguish an error of the program from the code of a session.
    """
    if isinstance(error, SessionEnded):
        return of_session(error.session) or ExitCode.FAILURE
    code = next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.FAILURE)
    if isinstance(error, CallError) and error.reason == _WRONG_TOKENS:
        code = ExitCode.DENIED
    if isinstance(error, CallError) and error.reason == _TOO_MANY_CALLS:
        code = ExitCode.UNAVAILABLE
    instead = environment.get("RETINUE_EXIT_ERROR", "")
    if code != ExitCode.USAGE and instead.isascii() and instead.isdigit() and 0 < int(instead) <= _LARGEST_CODE:
        return int(instead)
    return code


def of_session(session: pb.Session) -> int:
    """Returns a session's own code: that of `main1`; without one 0 for a session that was not to have a result,
    else 1.
    """
    from retinue.manager.v1 import session_pb2  # noqa: PLC0415  # pages of help need none of it

    if session.HasField("exit_code"):
        return session.exit_code
    if session.spec.type == session_pb2.SESSION_TYPE_BATCH and session.result != session_pb2.SESSION_RESULT_SUCCESS:
        return ExitCode.FAILURE
    return ExitCode.OK
