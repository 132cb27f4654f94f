"""Ends a stream that no manager answers, for callers that want to wait only so long."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc

from retinue.client.errors import ClientClosed, DeadlineExceeded
from retinue.client.transport.closing import closing_is_an_error
from retinue.client.transport.lazy_channel import ChannelMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Opening:
    """Watches over one stream: a stream may be silent for hours, so the manager is asked something else beside it."""

    def __init__(self, method: Any, cancel: Callable[[], object], identity: str) -> None:
        """`cancel` ends the stream that `method` has opened for a request of this `identity`."""
        self._cancel = cancel
        self._identity = identity
        self._method = method if isinstance(method, ChannelMethod) and method.timeout is not None else None
        self._is_dead = False
        self._asking = asyncio.create_task(self._ask(), name="opening a stream") if self._method is not None else None

    def end(self) -> None:
        """Stops watching."""
        if self._asking is not None:
            self._asking.cancel()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raises, in place of the end of the stream: DeadlineExceeded when no manager answered,
        and as `closing_is_an_error`.
        """
        try:
            with closing_is_an_error():
                yield
        except ClientClosed:
            if not self._is_dead or self._method is None:
                raise
            message = f"the manager did not answer within {self._method.timeout:g} s"
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            raise DeadlineExceeded(message, code=code, request_id=self._identity) from None

    async def _ask(self) -> None:
        if self._method is not None and not await self._method.is_answered():
            self._is_dead = True
            self._cancel()
