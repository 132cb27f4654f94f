"""The client library for programs that use asyncio; `retinue.client` has the same names for callers that block."""

from __future__ import annotations

from retinue.client.client import Client
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
from retinue.client.kernel.attachment import Attachment, Printed
from retinue.client.kernel.code import Code, CodeResult
from retinue.client.kernel.files import Files
from retinue.client.kernel.local_files import Copied
from retinue.client.kernel.port import PortConnection
from retinue.client.logs import LogChunk
from retinue.client.session_view import fold
from retinue.client.sessions import Session
from retinue.client.settings import Settings
from retinue.client.spec import SessionOptions, session_spec
from retinue.client.transport.backoff import RetryBudget

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
