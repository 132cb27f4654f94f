"""Runs the asynchronous library for callers that block: one event loop, in a thread of its own,
for all clients of the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

_T = TypeVar("_T")

# Libraries that make threads of a program take turns in one: module, and the function that says whether they do.
_PATCHING = {"gevent": ("gevent.monkey", "is_module_patched"), "eventlet": ("eventlet.patcher", "is_monkey_patched")}


class _LoopThread:
    """An event loop that runs in a thread until the process ends; a forked process makes its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._thread = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, which is started by the first call. Raises UsageError in its own thread, which must not
        wait for itself, and where threads are none.
        """
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                _refuse_patched_threads()
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                thread = threading.Thread(target=self._loop.run_forever, name="retinue client", daemon=True)
                thread.start()
                self._thread = thread.ident or 0
            if threading.get_ident() == self._thread:
                raise UsageError("a callback of the client must not call the client: it would wait for itself")
            return self._loop

    def discard(self, items: AsyncIterator[Any]) -> None:
        """Closes an iterator that is not read any more, and waits for nothing: any thread may collect garbage."""
        loop = self._loop
        close = getattr(items, "aclose", None)
        if close is None or loop is None or self._process != os.getpid() or not loop.is_running():
            return
        asyncio.run_coroutine_threadsafe(close(), loop)


_THREAD = _LoopThread()


def _refuse_patched_threads() -> None:
    """Raises UsageError where the loop's thread would be none: all that wait for it would stop it, and each other."""
    for library, (module, function) in _PATCHING.items():
        patched = getattr(sys.modules.get(module), function, None)
        if patched is not None and (patched("threading") or patched("thread")):
            raise UsageError(
                f"{library} has replaced this process's threads, and gRPC needs real ones: run the client in another "
                "kind of worker, such as gunicorn's gthread, or in a process of its own"
            )


class _Call:
    """A coroutine that the loop's thread runs for another one, which may be interrupted at any moment.

    That one waits for a plain lock: an interrupt inside of a condition, as of a future, may leave it locked,
    and the loop with it.
    """

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Any]], leave: Callable[[], object]) -> None:
        """`begin` is called in the loop, and `leave` there instead of it when the call is cancelled before."""
        self._begin = begin
        self._leave = leave
        self._task: asyncio.Task[None] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def start(self) -> None:
        """Starts it, in the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Cancels it, in the loop, whether or not it was started."""
        if self._task is None:
            self._leave()
        else:
            self._task.cancel()

    def wait(self) -> None:
        """Waits until it has ended, in the other thread."""
        self._ended.acquire()

    async def _run(self) -> None:
        try:
            self.result = await self._begin()
        except BaseException as error:  # noqa: BLE001  # raised in the other thread
            self.error = error
        finally:
            self._ended.release()


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Returns what a coroutine returns; an interrupt of this thread cancels it.
    Raises what it raises, and UsageError.
    """
    try:
        loop = _THREAD.loop()
    except UsageError:
        work.close()
        raise
    result: _T = _wait(loop, _Call(lambda: work, work.close))
    return result


def _wait(loop: asyncio.AbstractEventLoop, call: _Call) -> Any:
    """Returns what a call returns; an interrupt of this thread cancels it."""
    try:
        loop.call_soon_threadsafe(call.start)
        call.wait()
    except BaseException:
        loop.call_soon_threadsafe(call.cancel)
        raise
    if call.error is not None:
        raise call.error
    return call.result


def _do_nothing() -> None:
    """Leaves what has not begun."""


def iterate(items: AsyncIterator[_T]) -> Iterator[_T]:
    """Yields what an asynchronous iterator yields, and closes it when the caller leaves.
    Raises what it raises, and UsageError.
    """
    end = object()

    async def following() -> Any:
        return await anext(items, end)

    try:
        # An interrupt finds no coroutine here, of which Python would say that it was never awaited.
        while (item := _wait(_THREAD.loop(), _Call(following, _do_nothing))) is not end:
            yield item
    finally:
        _THREAD.discard(items)
