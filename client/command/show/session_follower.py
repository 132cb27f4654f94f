"""Follows a session from its request to its end: progress, output, and what Ctrl-C does."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from retinue.client import enum_names
from retinue.client.command.shell.exit_codes import ExitCode, of_session
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.signals import handled
from retinue.client.command.show.progress import open_brief_progress
from retinue.client.errors import CallError, NotFound, OutOfRange, Unavailable
from retinue.manager.v1 import session_pb2, session_service_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from retinue.client.logs import LogChunk
    from retinue.client.sessions import Session

_EXPLAIN_SECONDS = 2.0
# How long the rest of the output may take after the session's end.
_OUTPUT_SECONDS = 15.0
# Before, there is no output; and the terminal belongs to the progress.
_STARTED = frozenset(
    {session_pb2.SESSION_STATE_RUNNING, session_pb2.SESSION_STATE_TERMINATING, session_pb2.SESSION_STATE_TERMINATED}
)


class SessionFollower:
    """Follows one session; call `follow` once."""

    def __init__(
        self,
        session: Session,
        console: Console,
        *,
        fail_fast: bool = False,
        is_attached: bool = False,
        quiet: bool = False,
    ) -> None:
        """Progress goes to `console`, output to the stream that it came from; `fail_fast` gives up what can never fit,
        `quiet` shows only what is wrong. With `is_attached` the caller attaches a command once the session runs, and
        handles signals.
        """
        self._session = session
        self._fail_fast = fail_fast
        self._is_attached = is_attached
        self._quiet = quiet
        self._progress = open_brief_progress(console, quiet=quiet)
        self._is_batch = session.view.spec.type == session_pb2.SESSION_TYPE_BATCH
        self._started = asyncio.Event()
        self._interrupts: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._code: int | None = None
        self._terminated_by_us = False
        # Output waits while a question is asked.
        self._writable = asyncio.Event()
        self._writable.set()
        self._has_hinted = False

    async def follow(self) -> int:
        """Waits until the session terminates, or until an interactive one runs; returns the exit code.
        Raises CallError.
        """
        numbers: tuple[signal.Signals, ...] = () if self._is_attached else (signal.SIGINT, signal.SIGTERM)
        with handled({number: functools.partial(self._interrupts.put_nowait, number) for number in numbers}):
            return await self._follow()

    async def _follow(self) -> int:
        output = asyncio.create_task(self._pass_output()) if self._is_batch else None
        following = asyncio.create_task(self._show_progress())
        handling = asyncio.create_task(self._handle_signals())
        pending = {following, handling, asyncio.create_task(self._explain())}
        everything = [*pending, *([output] if output is not None else [])]
        try:
            while {following, handling} <= pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if output is not None and following.done():
                await self._finish_output(output)
            return self._exit_code()
        finally:
            await _cancel(everything)
            self._progress.close()

    async def _show_progress(self) -> None:
        async with aclosing(self._session.progress()) as steps:
            async for step in steps:
                self._progress.show(step.view)
                if step.view.state != session_pb2.SESSION_STATE_PENDING:
                    self._progress.note("")
                if step.view.state in _STARTED:
                    self._progress.close()
                    self._started.set()
                if step.view.state == session_pb2.SESSION_STATE_RUNNING and not self._is_batch:
                    if (
                        step.view.spec.type == session_pb2.SESSION_TYPE_INTERACTIVE
                        and not self._is_attached
                        and not self._quiet
                    ):
                        name = safe(step.name)
                        self._progress.say(
                            f"`retinue exec -it {name}` opens a shell in it, `retinue rm {name}` ends it"
                        )
                    return

    async def _pass_output(self) -> None:
        await self._started.wait()
        try:
            async with aclosing(self._session.logs(follow=True)) as chunks:
                async for chunk in chunks:
                    if chunk.dropped:
                        self._progress.say(
                            f"{chunk.dropped} bytes of output are lost to the size limit, or to a disk that took nothing"
                        )
                    await self._writable.wait()
                    await asyncio.to_thread(_write, chunk)
        except Unavailable as error:
            # The session goes on, and how it ends is followed without its output.
            name = safe(self._session.name)
            self._progress.say(f"its output is no longer followed: {error}; `retinue logs -f {name}` tries again")

    async def _finish_output(self, output: asyncio.Task[None]) -> None:
        if not self._started.is_set():
            return
        try:
            async with asyncio.timeout(_OUTPUT_SECONDS):
                await output
        except (TimeoutError, NotFound, OutOfRange) as error:
            self._progress.say(f"the output may be incomplete: {error or 'it did not come in time'}")

    async def _explain(self) -> None:
        while not enum_names.is_ended(self._session.view):
            if self._session.view.state == session_pb2.SESSION_STATE_PENDING:
                try:
                    answer = await self._session.explain()
                except CallError:
                    # Following the session reports real errors; this only adds to the progress.
                    answer = session_service_pb2.ExplainSessionResponse()
                if self._session.view.state != session_pb2.SESSION_STATE_PENDING:
                    continue
                position = f"number {answer.queue_position} in the queue" if answer.queue_position else ""
                self._progress.note(position)
                if self._fail_fast and answer.tier == session_service_pb2.REASON_TIER_CONFIGURATION:
                    why = safe(answer.message or answer.reason)
                    self._progress.say(f"it can never fit as things are configured: {why}")
                    self._code = ExitCode.UNSCHEDULABLE
                    await self._session.terminate()
                    return
                if answer.tier == session_service_pb2.REASON_TIER_CONFIGURATION and not self._has_hinted:
                    self._has_hinted = True
                    self._progress.say(
                        "it waits until the cluster can hold it; Ctrl-C ends it, --fail-fast does at once"
                    )
            else:
                self._progress.note("")
            await asyncio.sleep(_EXPLAIN_SECONDS)

    async def _handle_signals(self) -> None:
        """The first interrupt ends the session, or asks; the second leaves it to the manager and returns."""
        while True:
            number = await self._interrupts.get()
            choice = "t" if number is signal.SIGTERM or not sys.stdin.isatty() else await self._ask()
            if choice == "d":
                self._progress.say(f"left running: {self._session.id}")
                self._code = ExitCode.OK
                return
            if choice != "c":
                break
            self._progress.say("continuing")
        self._terminated_by_us = True
        self._progress.close()
        self._progress.say(f"terminating session {safe(self._session.name)}; press Ctrl-C again to detach")
        await self._session.terminate()
        await self._interrupts.get()
        self._code = ExitCode.INTERRUPTED

    async def _ask(self) -> str:
        self._writable.clear()
        self._progress.close()
        self._progress.say("[t]erminate the session, [d]etach from it, or [c]ontinue? [t]")
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(sys.stdin, readable.set)
        again = asyncio.create_task(self._interrupts.get())
        answer = asyncio.create_task(readable.wait())
        try:
            await asyncio.wait([again, answer], return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                return "t"
            return (sys.stdin.readline().strip().lower() or "t")[0]
        finally:
            self._writable.set()
            loop.remove_reader(sys.stdin)
            await _cancel([again, answer])

    def _exit_code(self) -> int:
        if self._code is not None:
            return self._code
        view = self._session.view
        if not enum_names.is_ended(view):
            return ExitCode.OK
        self._progress.close()
        if self._terminated_by_us and not view.HasField("exit_code"):
            return ExitCode.INTERRUPTED
        return of_session(view)


def _write(chunk: LogChunk) -> None:
    to = sys.stderr if chunk.stream == "stderr" else sys.stdout
    to.buffer.write(chunk.data)
    to.buffer.flush()


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    # Their errors were raised where they count; here they only have to finish.
    await asyncio.gather(*tasks, return_exceptions=True)
