"""A conversation with a session, from a program's main thread: what is typed, interrupts, history and completion.

The stream lives on a loop in a thread of its own, so that Ctrl-C finds this thread at the prompt,
or in the middle of a run, and not within the loop.
"""

from __future__ import annotations

import asyncio
import codeop
import contextlib
import os
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.shell.interrupts import raised_interrupts
from retinue.client.errors import CallError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future
    from types import FrameType

    from retinue.client.command.shell.connection import Connection
    from retinue.client.command.show.code_output import Output
    from retinue.client.kernel.code import Code
    from retinue.types.v1 import code_pb2

HISTORY_LINES = 1000
COMPLETE_SECONDS, CLOSE_SECONDS = 5.0, 5.0
_PROMPT, _MORE = ">>> ", "... "


class Conversation:
    """Runs in one session, one after the other. All methods block."""

    def __init__(self, code: Code, loop: asyncio.AbstractEventLoop) -> None:
        """The stream, open, and the loop it is on, which runs in another thread."""
        self._code = code
        self._loop = loop

    def run(self, text: str, output: Output, *, timeout: float | None = None) -> code_pb2.CodeFinished:
        """Runs code and shows what happens, to its end; an interrupt here is one there. Raises CallError."""
        run_id = str(uuid.uuid4())
        events = self._code.run(text, run_id=run_id, timeout=timeout)

        def interrupt(*_: object) -> None:
            # At once, and not when it has finished.
            self._call(self._code.interrupt(run_id))

        # Not as an exception, which would end the conversation wherever it came: amid what is shown, for instance.
        with _on_interrupt(interrupt):
            try:
                while True:
                    event = self._call(anext(events)).result()
                    output.show(event)
                    if event.HasField("finished"):
                        finished: code_pb2.CodeFinished = event.finished
                        return finished
                    if event.HasField("input_request"):
                        value = _asked(output, event.input_request)
                        step = self._code.interrupt(run_id) if value is None else self._code.answer(run_id, value)
                        self._call(step).result()
            finally:
                self._call(events.aclose()).result(CLOSE_SECONDS)

    def complete(self, line: str, end: int, word: str) -> list[str]:
        """Returns the completions of the word at the end of the part of a line."""
        if not line[:end].strip():
            return [f"{word}    "]
        asking = self._call(self._code.complete(line, end))
        try:
            found = asking.result(COMPLETE_SECONDS)
        except (TimeoutError, CallError):
            asking.cancel()
            return []
        # The text that the session replaces may begin before or after the word that readline sees.
        begin = end - len(word)
        if found.start <= begin:
            kept = line[found.start : begin]
            return [match[len(kept) :] for match in found.matches if match.startswith(kept)]
        return [line[begin : found.start] + match for match in found.matches]

    def _call(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)


def _asked(output: Output, request: code_pb2.CodeInputRequest) -> str | None:
    """Returns the user's answer; None for an interrupt instead."""
    try:
        with _on_interrupt(signal.default_int_handler):
            return output.ask(request)
    except KeyboardInterrupt:
        return None


@contextlib.contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Has SIGINT handled so for as long as the block lasts, unless the parent process has it ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _awaited(work: Any) -> Any:
    return await work


@contextlib.contextmanager
def conversation(connection: Connection, session: str, language: str) -> Iterator[Conversation]:
    """Yields a conversation for as long as the block lasts. Raises CallError."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="code", daemon=True)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(work), loop)

    stack = contextlib.AsyncExitStack()

    async def connect() -> Code:
        client = await stack.enter_async_context(connection.client())
        return await stack.enter_async_context(client.sessions.code(session, language))

    try:
        # At a prompt Ctrl-C is for what is typed or runs.
        with raised_interrupts():
            yield Conversation(call(connect()).result(), loop)
    finally:
        with contextlib.suppress(TimeoutError):
            call(stack.aclose()).result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)


def read_code() -> str | None:
    """Returns one piece of code, of one line or more; None at the end of input. Blocks."""
    lines: list[str] = []
    terminal = sys.stdin.isatty()
    while True:
        try:
            lines.append(input((_MORE if lines else _PROMPT) if terminal else ""))
        except EOFError:
            if terminal:
                click.echo()
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            click.echo("\nKeyboardInterrupt")
            lines.clear()
            continue
        if is_whole(lines):
            return "\n".join(lines)


def is_whole(lines: list[str]) -> bool:
    """Returns whether lines can be run, or more must follow. An empty line ends an indented block;
    anything not Python is run at once.
    """
    if lines[-1].endswith("\\"):
        return False
    try:
        return codeop.compile_command("\n".join(lines)) is not None or (len(lines) > 1 and not lines[-1].strip())
    except (SyntaxError, ValueError, OverflowError):
        return True


@contextlib.contextmanager
def history(talk: Conversation) -> Iterator[None]:
    """Offers earlier lines with the arrow keys, and names with tab, on a terminal."""
    try:
        import readline  # noqa: PLC0415  # not everywhere, and it takes the terminal over
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "retinue"
    file = state / "code-history"
    matches: list[str] = []

    def complete(word: str, number: int) -> str | None:
        if number == 0:
            matches[:] = talk.complete(readline.get_line_buffer(), readline.get_endidx(), word)
        return matches[number] if number < len(matches) else None

    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n()[]{},;=+-*/%&|^~<>:'\"")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        with contextlib.suppress(OSError):
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(file)
