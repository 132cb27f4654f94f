"""Forks after the client was used, with a stream open; prints what became of the processes as one line of JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor

from retinue.client import Client, RetinueError, UsageError

CHILDREN = 20


def nothing() -> None:
    """Has nothing to do with the client."""


def count(_: int = 0) -> int:
    """Calls the manager by a client of its own."""
    with Client.from_settings() as client:
        return len(list(client.sessions.list(limit=1)))


def of_parent() -> str:
    """Calls the manager by the client of the process that this one was forked from."""
    try:
        list(USED.sessions.list(limit=1))
    except RetinueError as error:
        return type(pickle.loads(pickle.dumps(error))).__name__  # noqa: S301  # our own
    return ""


def main() -> None:
    """The program."""
    begun = threading.Event()

    def follow() -> None:
        events = USED.sessions.watch()
        begun.set()
        for _ in events:
            pass

    threading.Thread(target=follow, daemon=True).start()
    begun.wait()
    list(USED.sessions.list(limit=1))
    forking, spawning = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    codes = []
    for _ in range(CHILDREN):
        child = forking.Process(target=nothing)
        child.start()
        child.join()
        codes.append(child.exitcode)
    refused = ""
    with ProcessPoolExecutor(1, mp_context=forking) as pool:
        try:
            pool.submit(count).result()
        except UsageError as error:
            refused = str(error)
        inherited = pool.submit(of_parent).result()
    with ProcessPoolExecutor(1, mp_context=spawning) as pool:
        spawned = pool.submit(count).result()
    # The parent goes on.
    list(USED.sessions.list(limit=1))
    print(json.dumps({"codes": codes, "refused": refused, "inherited": inherited, "spawned": spawned}), flush=True)  # noqa: T201
    os._exit(0)


if __name__ == "__main__":
    USED = Client.from_settings()
    main()
