"""The client library for programs that use asyncio; `retinue.client` has the same names for callers that block."""

from __future__ import annotations

from retinue.client.attachment import Attachment, Printed
from retinue.client.backoff import RetryBudget
from retinue.client.client import Client
from retinue.client.code import Code, CodeResult
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
from retinue.client.files import Files
from retinue.client.local_files import Copied
from retinue.client.logs import LogChunk
from retinue.client.port import PortConnection
from retinue.client.session import Session
from retinue.client.session_view import fold
from retinue.client.settings import Settings
from retinue.client.spec import SessionOptions, session_spec

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
