"""The library for callers that block: its loop, its iterators, and that it is what the generator writes."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import retinue.client
import retinue.client.aio
from retinue.client import Client, Unavailable, UsageError, blocking
from retinue.client.blocking import iterate, run
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

ROOT = Path(__file__).parents[3]


def test_the_modules_are_what_the_generator_writes() -> None:
    """`make proto` writes them anew."""
    subprocess.run([sys.executable, ROOT / "scripts/generate-sync-client", "--check"], check=True)


def test_both_doors_have_the_same_names() -> None:
    assert retinue.client.__all__ == retinue.client.aio.__all__
    assert all(getattr(retinue.client, name) is not None for name in retinue.client.__all__)
    assert set(retinue.client.__all__) <= set(dir(retinue.client))
    with pytest.raises(AttributeError):
        _ = retinue.client.no_such_name


def test_all_work_is_done_in_one_thread() -> None:
    async def thread() -> int:
        return threading.get_ident()

    threads = {run(thread()) for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_callback_that_calls_the_client_is_refused_and_waits_for_nothing() -> None:
    async def calls_itself() -> None:
        run(asyncio.sleep(0))

    with pytest.raises(UsageError, match="callback"):
        run(calls_itself())


async def test_an_iterator_that_is_left_is_closed() -> None:
    closed = threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(100):
                yield number
        finally:
            closed.set()

    def read() -> list[int]:
        found = []
        items = iterate(numbers())
        for number in items:
            found.append(number)
            if number == 2:
                break
        del items
        return found

    assert await asyncio.to_thread(read) == [0, 1, 2]
    await eventually(closed.is_set)


def test_errors_come_as_they_are() -> None:
    async def fails() -> None:
        raise Unavailable("away")

    async def yields_and_fails() -> AsyncGenerator[int, None]:
        yield 1
        raise Unavailable("away")

    with pytest.raises(Unavailable, match="away"):
        run(fails())
    items = iter(iterate(yields_and_fails()))
    assert next(items) == 1
    with pytest.raises(Unavailable, match="away"):
        next(items)


def test_an_interrupt_cancels_what_it_interrupts_whenever_it_comes() -> None:
    program = """
import asyncio, os, signal, threading
from retinue.client.blocking import run
async def waits(cancelled):
    # The caller may not have begun to wait yet.
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()
for _ in range(100):
    cancelled = threading.Event()
    try:
        run(waits(cancelled))
    except KeyboardInterrupt:
        assert cancelled.wait()
print("cancelled")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=NEVER)
    assert ended.stdout == "cancelled\n", ended.stderr


def test_a_process_ends_while_an_iterator_is_open() -> None:
    program = """
import asyncio
import gc
from retinue.client.blocking import iterate
async def numbers():
    while True:
        yield 1
        await asyncio.sleep(0)
items = iterate(numbers())
print(next(items))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=NEVER)
    assert (ended.stdout, ended.stderr) == ("1\n", "")


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    program = """
import asyncio, os
from retinue.client.blocking import run
run(asyncio.sleep(0))
if (child := os.fork()) == 0:
    run(asyncio.sleep(0))
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=NEVER)
    assert ended.stdout == "7\n"


def test_a_client_is_made_anywhere_and_serves_one_loop_after_the_other() -> None:
    asynchronous = retinue.client.aio.Client.connect("127.0.0.1:9", token="t")

    async def fails() -> None:
        with pytest.raises(Unavailable):
            await asynchronous.users.caller()
        await asynchronous.close()

    asyncio.run(fails())
    asyncio.run(fails())
    with Client.connect("127.0.0.1:9", token="t") as client, pytest.raises(Unavailable):
        client.users.caller()


def test_importing_the_package_loads_no_grpc() -> None:
    program = "import sys, retinue.client; print('grpc' in sys.modules, 'asyncio' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ, timeout=NEVER
    )
    assert ended.stdout.split() == ["False", "False"]


def test_an_interrupt_before_a_step_begins_leaves_no_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def numbers() -> AsyncIterator[int]:
        while True:
            yield 1

    def interrupted() -> asyncio.AbstractEventLoop:
        raise KeyboardInterrupt

    items = blocking.iterate(numbers())
    assert next(items) == 1
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with monkeypatch.context() as patch:
            patch.setattr(blocking._THREAD, "loop", interrupted)  # noqa: SLF001  # where an interrupt comes
            with pytest.raises(KeyboardInterrupt):
                next(items)
        gc.collect()
    assert [str(warning.message) for warning in warned] == []
