"""A call: what it says of itself, as values, and the one thing that touches the library's call.

grpc.aio frees a call when the task that serves it ends. Its context stays, and asks a null pointer from then on: the process dies
of `peer`, `auth_context`, a read or a write that comes later. So nothing but `OpenCall` holds a context; it lets go of it when
its call ends, and everything else works on values that were read at the start.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from retinue.manager.server.wrong_tokens import address_of

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What a call says of itself and of its caller, read once at its start."""

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
        """The address or network that the call comes from."""
        return address_of(self.peer)

    def remaining(self, now: float) -> float | None:
        """Seconds until the deadline; None: there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - now)


def read_call(method: str, context: Context) -> Call:
    """Reads all that is ever asked about a call; only to be called while the call cannot have ended, before the first await."""
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
    """The id that the caller has given its call, or a new one."""
    for key, value in metadata:
        if key == "x-request-id" and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(8)


class CallEndedError(Exception):
    """The call has ended: nothing can be read from it or written to it any more."""


class HandlerAbortedError(Exception):
    """A handler of a library ends its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class OpenCall:
    """The call itself for as long as its task runs: the only holder of its context."""

    def __init__(self, context: Context) -> None:
        self._context: Context | None = context
        self.code: grpc.StatusCode | None = None
        """What the call was aborted with."""

    @contextmanager
    def until_ended(self) -> Iterator[None]:
        """Lets go of the call at the end of the block, which is to be that of its task."""
        try:
            yield
        except CallEndedError as error:
            # To the library and to logs, a caller who is gone is a call that was cancelled, wherever that is noticed first.
            raise asyncio.CancelledError from error
        finally:
            self._context = None

    @property
    def ended(self) -> bool:
        """Whether the call must not be touched any more."""
        return self._context is None

    async def write(self, response: Any) -> None:
        """Sends a response; returns when there is room for the next. Raises CallEndedError."""
        context = self._held()
        try:
            await context.write(response)
        except grpc.aio.BaseError as error:
            raise CallEndedError from error

    async def abort(self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, Any], ...] = ()) -> NoReturn:
        """Ends the call with a status. Raises grpc.aio.AbortError, which its task has to end with, or CallEndedError."""
        context = self._held()
        self.code = code
        try:
            await context.abort(code, details, metadata)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:
            raise CallEndedError from error
        raise AssertionError("abort always raises")

    def requests(self, requests: Any) -> AsyncIterator[Any]:
        """The stream of requests as the library gives it, behind the same guard."""
        return _Requests(self, requests)

    def _held(self) -> Context:
        if self._context is None:
            raise CallEndedError
        return self._context


class _Requests:
    def __init__(self, call: OpenCall, requests: Any) -> None:
        self._call = call
        # Not by `aiter` yet: of a receiver that is never read, the library warns.
        self._requests = requests

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        if self._call.ended:
            raise CallEndedError
        return await anext(self._requests)
