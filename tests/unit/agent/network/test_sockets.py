"""A socket that is made inside a namespace is closed when who asked for it has gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import pytest

from retinue.agent.network import sockets
from tests.support.eventually import eventually


async def test_a_socket_that_comes_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, resume, (made, other) = threading.Event(), threading.Event(), socket.socketpair()

    def make(*_: object) -> socket.socket:
        begun.set()
        resume.wait()
        return made

    monkeypatch.setattr(sockets, "_socket", make)
    namespace: Any = None
    with contextlib.closing(made), contextlib.closing(other):
        connecting = asyncio.create_task(sockets.connect(namespace, 80, ["127.0.0.1"]))
        try:
            await eventually(begun.is_set)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            assert made.fileno() >= 0
        finally:
            resume.set()
        await eventually(lambda: made.fileno() < 0)
