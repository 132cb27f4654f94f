"""Reads what a call says of itself and of its caller, as values, once at its start;
see retinue.rpc.open_call for why.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from retinue.manager.server.wrong_tokens import address_of

REQUEST_ID_KEY = "x-request-id"
"""Metadata key of the id of a call: a caller may send one, and every answer carries it in its trailers."""
BROWSER_KEY = "x-retinue-browser"
"""Metadata key of calls that a console makes for browsers."""
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
    browser: str = ""
    """The address of the browser that the console makes the call for; empty for other calls."""

    @property
    def address(self) -> str:
        """Returns the address or network that the call comes from."""
        return self.browser or address_of(self.peer)

    def remaining(self, now: float) -> float | None:
        """Seconds until the deadline; None: there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - now)


class Browsers:
    """Has calls that a manager's console makes for browsers count as those of the browsers, not of the manager."""

    def __init__(self) -> None:
        # Nobody else can name an address.
        self._secret = secrets.token_urlsafe(32)

    def metadata(self, address: str) -> tuple[str, str]:
        """Returns what a call has in its metadata that is made for a browser at this address."""
        return BROWSER_KEY, f"{self._secret} {address}"

    def address_in(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """Returns the address of the browser that a call is made for; empty for other calls."""
        for key, value in metadata:
            if key == BROWSER_KEY and isinstance(value, str):
                secret, _, address = value.partition(" ")
                if hmac.compare_digest(secret.encode(), self._secret.encode()):
                    return address
        return ""


def read_call(method: str, context: Context, browsers: Browsers | None = None) -> Call:
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
        browser="" if browsers is None else browsers.address_in(metadata),
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
