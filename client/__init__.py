"""The public Python client library, for callers that block; `retinue.client.aio` has the same for asyncio.

with Client.from_settings() as client:
    print(client.run(["hostname"]).text)

Nothing is imported before it is used, so that the command line, which lies beneath this package, starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.client.completed import Completed
    from retinue.client.errors import (
        Aborted,
        AlreadyExists,
        CallError,
        ClientClosed,
        DeadlineExceeded,
        FailedPrecondition,
        FieldViolation,
        InvalidRequest,
        NotFound,
        OutOfRange,
        PermissionDenied,
        ResourceExhausted,
        RetinueError,
        ServerFault,
        SessionEnded,
        TransferError,
        Unauthenticated,
        Unavailable,
        UsageError,
        WaitTimeout,
    )
    from retinue.client.kernel.attachment import Printed
    from retinue.client.kernel.code import CodeResult
    from retinue.client.kernel.local_files import Copied
    from retinue.client.logs import LogChunk
    from retinue.client.session_view import fold
    from retinue.client.settings import Settings
    from retinue.client.spec import SessionOptions, session_spec
    from retinue.client.sync.attachment import Attachment
    from retinue.client.sync.client import Client
    from retinue.client.sync.code import Code
    from retinue.client.sync.files import Files
    from retinue.client.sync.port import PortConnection
    from retinue.client.sync.sessions import Session
    from retinue.client.transport.backoff import RetryBudget

_MODULES = {
    "Aborted": "retinue.client.errors",
    "AlreadyExists": "retinue.client.errors",
    "Attachment": "retinue.client.sync.attachment",
    "CallError": "retinue.client.errors",
    "Client": "retinue.client.sync.client",
    "ClientClosed": "retinue.client.errors",
    "Code": "retinue.client.sync.code",
    "CodeResult": "retinue.client.kernel.code",
    "Completed": "retinue.client.completed",
    "Copied": "retinue.client.kernel.local_files",
    "DeadlineExceeded": "retinue.client.errors",
    "FailedPrecondition": "retinue.client.errors",
    "FieldViolation": "retinue.client.errors",
    "Files": "retinue.client.sync.files",
    "InvalidRequest": "retinue.client.errors",
    "LogChunk": "retinue.client.logs",
    "NotFound": "retinue.client.errors",
    "OutOfRange": "retinue.client.errors",
    "PermissionDenied": "retinue.client.errors",
    "PortConnection": "retinue.client.sync.port",
    "Printed": "retinue.client.kernel.attachment",
    "ResourceExhausted": "retinue.client.errors",
    "RetinueError": "retinue.client.errors",
    "RetryBudget": "retinue.client.transport.backoff",
    "ServerFault": "retinue.client.errors",
    "Session": "retinue.client.sync.sessions",
    "SessionEnded": "retinue.client.errors",
    "SessionOptions": "retinue.client.spec",
    "Settings": "retinue.client.settings",
    "TransferError": "retinue.client.errors",
    "Unauthenticated": "retinue.client.errors",
    "Unavailable": "retinue.client.errors",
    "UsageError": "retinue.client.errors",
    "WaitTimeout": "retinue.client.errors",
    "fold": "retinue.client.session_view",
    "session_spec": "retinue.client.spec",
}

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Attachment",
    "CallError",
    "Client",
    "ClientClosed",
    "Code",
    "CodeResult",
    "Completed",
    "Copied",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FieldViolation",
    "Files",
    "InvalidRequest",
    "LogChunk",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "PortConnection",
    "Printed",
    "ResourceExhausted",
    "RetinueError",
    "RetryBudget",
    "ServerFault",
    "Session",
    "SessionEnded",
    "SessionOptions",
    "Settings",
    "TransferError",
    "Unauthenticated",
    "Unavailable",
    "UsageError",
    "WaitTimeout",
    "fold",
    "session_spec",
]


def __getattr__(name: str) -> object:
    """Imports a name when it is first used. Raises AttributeError."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Returns the names of the library."""
    return sorted([*globals(), *__all__])
