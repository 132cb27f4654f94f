"""Where no event loop of asyncio runs, as under trio, the asynchronous client says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from retinue.client import UsageError
from retinue.client.aio import Client

if TYPE_CHECKING:
    from collections.abc import Coroutine


def first_step(work: Coroutine[Any, Any, Any]) -> None:
    """Begins a coroutine as another library would, which knows nothing of asyncio."""
    try:
        work.send(None)
    finally:
        work.close()


async def first(items: Any) -> None:
    async for _ in items:
        return


@pytest.mark.parametrize("use", ["block", "call", "list", "stream", "attach", "code"])
def test_without_asyncio(use: str) -> None:
    client = Client.connect("127.0.0.1:1", token="t")
    session = "lab"
    work: dict[str, Any] = {
        "block": client.__aenter__,
        "call": client.users.caller,
        "list": lambda: first(client.sessions.list()),
        "stream": lambda: first(client.sessions.watch()),
        "attach": client.sessions.attach(session).__aenter__,
        "code": client.sessions.code(session).__aenter__,
    }
    with pytest.raises(UsageError, match=r"trio\.to_thread"):
        first_step(work[use]())
