"""Leaves in one way, `python -m … FORM HOW SESSION`, while streams are open: by its end, an exit, an error, or, once it
has printed `open`, by a signal.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING

from retinue.client import Client, aio

if TYPE_CHECKING:
    from collections.abc import Callable

LASTING = ["sh", "-c", "echo on; exec sleep infinity"]
STREAMS = ("logs", "attach", "code", "watch")


def leave(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    if how == "error":
        raise ValueError("of the program")


def follow(client: Client, session: str, stream: str, opened: Callable[[], object]) -> None:
    """Reads a stream until the program ends."""
    if stream == "logs":
        for _ in client.sessions.logs(session, follow=True):
            opened()
    elif stream == "attach":
        with client.sessions.attach(session, LASTING) as command:
            for _ in command:
                opened()
    elif stream == "code":
        with client.sessions.code(session) as code:
            for event in code.batch(execute="echo on; exec sleep infinity"):
                if event.HasField("queued") or event.stdout:
                    opened()
    else:
        for _ in client.sessions.watch(after_revision=0):
            opened()


def blocking(how: str, session: str) -> None:
    client = Client.from_settings()
    opened = {stream: threading.Event() for stream in STREAMS}

    def start(stream: str) -> None:
        follow(client, session, stream, opened[stream].set)

    for stream in STREAMS:
        threading.Thread(target=start, args=(stream,), daemon=True).start()
    for event in opened.values():
        event.wait()
    if how != "signal":
        leave(how)
        return
    print("open", flush=True)  # noqa: T201
    follow(client, session, "watch", lambda: None)


async def follow_in_loop(client: aio.Client, session: str, stream: str, opened: Callable[[], object]) -> None:
    """Reads a stream until the program ends."""
    if stream == "logs":
        async for _ in client.sessions.logs(session, follow=True):
            opened()
    elif stream == "attach":
        async with client.sessions.attach(session, LASTING) as command:
            async for _ in command:
                opened()
    elif stream == "code":
        async with client.sessions.code(session) as code:
            async for event in code.batch(execute="echo on; exec sleep infinity"):
                if event.HasField("queued") or event.stdout:
                    opened()
    else:
        async for _ in client.sessions.watch(after_revision=0):
            opened()


async def in_loop(how: str, session: str) -> None:
    client = aio.Client.from_settings()
    opened = {stream: asyncio.Event() for stream in STREAMS}
    tasks = [asyncio.create_task(follow_in_loop(client, session, stream, opened[stream].set)) for stream in STREAMS]
    for event in opened.values():
        await event.wait()
    if how != "signal":
        leave(how)
        return
    print("open", flush=True)  # noqa: T201
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    form, how, session = sys.argv[1:]
    if form == "blocking":
        blocking(how, session)
    else:
        asyncio.run(in_loop(how, session))
