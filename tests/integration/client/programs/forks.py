"""Forks in one way, `python -m … SHAPE COUNT`, while streams are open, threads call and connections are made.

Prints one line of JSON: codes other than 0 with which processes ended, and what the streams of this one ended by.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.client import Client, RetinueError, Settings
from retinue.client.settings import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 60.0
"""How long a child may take: far more than it does."""
STREAMS = 3


def nothing() -> None:
    """Has nothing to do with the client."""


def fork(context: str) -> int:
    """One process of multiprocessing; its exit code."""
    child = multiprocessing.get_context(context).Process(target=nothing)  # type: ignore[attr-defined]
    child.start()
    child.join(SECONDS)
    if child.exitcode is None:
        child.kill()
        child.join()
    return int(child.exitcode)


def fork_and_execute() -> int:
    """A plain fork whose child becomes another program."""
    child = os.fork()
    if child == 0:
        os.execv("/bin/true", ["true"])  # noqa: S606  # what it is about
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_and_collect() -> int:
    """A plain fork whose child collects what it has of the client, and ends as Python does."""
    child = os.fork()
    if child == 0:
        import gc  # noqa: PLC0415  # in the child

        gc.collect()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def start_program() -> int:
    """A program with a function that runs in the child before it."""
    return subprocess.run(["/bin/true"], preexec_fn=os.getpid, timeout=SECONDS, check=False).returncode


async def _in_a_loop(count: int) -> list[int]:
    found = []
    for _ in range(count):
        found.append(fork("fork"))
        await asyncio.sleep(0)
    return found


SHAPES: dict[str, Callable[[], int]] = {
    "fork": lambda: fork("fork"),
    "forkserver": lambda: fork("forkserver"),
    "spawn": lambda: fork("spawn"),
    "execute": fork_and_execute,
    "collect": fork_and_collect,
    "preexec": start_program,
}


def _follow(client: Client, ended: list[str]) -> None:
    try:
        for _ in client.sessions.watch():
            pass
    except RetinueError as error:
        ended.append(repr(error))


def _call(client: Client, ended: list[str], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            list(client.sessions.list(limit=1))
        except RetinueError as error:
            ended.append(repr(error))
            return


def _try(settings: Settings) -> None:
    """Calls a manager that is none, again and again."""
    with Client.from_settings(settings) as client:
        while True:
            try:
                list(client.sessions.list(limit=1))
            except RetinueError:
                continue


def _never_answers() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=64)


def _closes() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def close() -> None:
        while True:
            listener.accept()[0].close()

    threading.Thread(target=close, daemon=True).start()
    return listener


def main(shape: str, count: int) -> None:
    """The program."""
    client = Client.from_settings()
    list(client.sessions.list(limit=1))
    ended: list[str] = []
    stop = threading.Event()
    work = [threading.Thread(target=_follow, args=(client, ended), daemon=True) for _ in range(STREAMS)]
    caller = threading.Thread(target=_call, args=(client, ended, stop), daemon=True)
    listeners = [_never_answers(), _closes()]
    settings = resolve(os.environ)
    for listener in listeners:
        other = replace(settings, endpoint=f"127.0.0.1:{listener.getsockname()[1]}")
        work.append(threading.Thread(target=_try, args=(other,), daemon=True))
    for thread in [*work, caller]:
        thread.start()
    codes = asyncio.run(_in_a_loop(count)) if shape == "loop" else [SHAPES[shape]() for _ in range(count)]
    stop.set()
    caller.join()
    list(client.sessions.list(limit=1))
    print(json.dumps({"bad": [code for code in codes if code], "count": len(codes), "ended": ended}), flush=True)  # noqa: T201
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
