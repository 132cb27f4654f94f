"""Reads what a call says of itself and of its caller, as values, once at its start;
see retinue.rpc.open_call for why.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from retinue.manager.server.wrong_tokens import address_of

REQUEST_ID_KEY = "x-request-id"
"""Metadata key of the id of a call: a caller may send one, and every answer carries it in its trailers."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """Holds what a call says of itself and of its caller, read once at its start."""

    method: str
    peer: str
    """As the library names it: `ipv4:127.0.0.1:4711`."""
    metadata: tuple[tuple[str, str | bytes], ...]
    identities: Mapping[str, tuple[bytes, ...]]
    """The names in the caller's certificate and the like, by kind."""
    deadline: float | None
    """By the monotonic clock; None: the caller has set none."""
    request_id: str

    @property
    def address(self) -> str:
        """Returns the address or network that the call comes from."""
        return address_of(self.peer)

    def remaining(self, now: float) -> float | None:
        """Seconds until the deadline; None: there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - now)


def read_call(method: str, context: Context) -> Call:
    """Reads all that is ever asked about a call; only to be called while the call cannot have ended,
    before the first await.
    """
    metadata = tuple((key, value) for key, value in context.invocation_metadata() or ())
    remaining = context.time_remaining()
    return Call(
        method=method,
        peer=context.peer(),
        metadata=metadata,
        identities={kind: tuple(values) for kind, values in context.auth_context().items()},
        deadline=None if remaining is None else time.monotonic() + remaining,
        request_id=request_id_of(metadata),
    )


def request_id_of(metadata: tuple[tuple[str, str | bytes], ...]) -> str:
    """Returns the id that the caller has given its call, or a new one."""
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(8)


class HandlerAbortedError(Exception):
    """A handler of a library ends its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
