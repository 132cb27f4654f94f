"""Tells a closed client from a cancelled task."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from retinue.client.errors import ClientClosed

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def closing_is_an_error() -> Iterator[None]:
    """Raises ClientClosed where gRPC has ended a call because its channel was closed, or the call by another task.

    gRPC raises CancelledError, which a TaskGroup would take for a good end of the task.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ClientClosed("the client was closed while it was waited for") from None
