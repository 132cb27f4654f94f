"""A WSGI application that calls the manager in each request; with `CALL_FIRST` also when it is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from retinue.client import Client, RetinueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CLIENT = Client.from_settings()
if os.environ.get("CALL_FIRST"):
    list(CLIENT.sessions.list(limit=1))


def app(_: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """Answers how many sessions there are, at most one; or what is wrong."""
    try:
        answer = str(len(list(CLIENT.sessions.list(limit=1))))
    except RetinueError as error:
        start("500 Internal Server Error", [("Content-Type", "text/plain")])
        return [f"{type(error).__name__}: {error}".encode()]
    start("200 OK", [("Content-Type", "text/plain")])
    return [answer.encode()]
