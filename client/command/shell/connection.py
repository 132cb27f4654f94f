"""Connects commands to a manager, and runs asynchronous commands; shared by all commands."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.interrupts import run_interruptible
from retinue.client.command.shell.printable import safe

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine

    from retinue.client.client import Client
    from retinue.client.errors import CallError
    from retinue.client.settings import Settings
    from retinue.client.transport.lazy_channel import LazyChannel

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")
# A manager that is there answers sooner, and people wait that long without asking themselves.
_SILENT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Connection:
    """The flags that say which manager; None where there was none."""

    context: str | None = None
    endpoint: str | None = None
    token: str | None = None
    ca: str | None = None

    def settings(self) -> Settings:
        """Returns the settings in force. Raises UsageError."""
        from retinue.client.settings import resolve  # noqa: PLC0415  # pages of help need none of it

        return resolve(os.environ, context=self.context, endpoint=self.endpoint, token=self.token, ca=self.ca)

    def unused_context(self) -> str:
        """Returns what takes the place of a context, `--endpoint` or `RETINUE_ENDPOINT`; empty if there is none."""
        from retinue.client.errors import UsageError  # noqa: PLC0415  # as above
        from retinue.client.settings import contexts_path, read_contexts  # noqa: PLC0415  # as above

        source = "--endpoint" if self.endpoint else "RETINUE_ENDPOINT" if os.environ.get("RETINUE_ENDPOINT") else ""
        try:
            _, contexts = read_contexts(contexts_path(os.environ))
        except UsageError:
            contexts = {}
        return source if contexts else ""

    def client(self) -> Client:
        """Returns a client, and says so when its manager does not answer for some seconds; to be used inside the event
        loop, with `async with`. Raises UsageError.
        """
        import asyncio  # noqa: PLC0415  # as above

        from retinue.client.client import Client  # noqa: PLC0415  # it takes longer to import than all the rest
        from retinue.client.transport.backoff import RetryBudget  # noqa: PLC0415  # as below
        from retinue.client.transport.channel import open_channel  # noqa: PLC0415  # as below

        settings = self.settings()
        channel = open_channel(settings.endpoint, settings.token, settings.read_ca())
        Silence(channel, settings.endpoint, asyncio.get_running_loop()).watch()
        return Client(channel, retry_budget=RetryBudget(waiting=Obstacles().say))


class Obstacles:
    """Says, once for each, what keeps a call from being answered that is tried again."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, failure: CallError, left: float) -> None:
        """Takes a failure, and the seconds for which it is tried again. One without a reason is no answer of a manager:
        that none answers, `Silence` says.
        """
        if failure.reason and failure.message not in self._said:
            self._said.add(failure.message)
            click.echo(f"retinue: {safe(failure.message)}; still trying for {left:.0f} s, Ctrl-C ends it", err=True)


class Silence:
    """Says once that a manager does not answer, whenever a connection to it is wanted and is not made for some seconds,
    at the beginning and later.
    """

    def __init__(self, channel: LazyChannel, endpoint: str, loop: AbstractEventLoop) -> None:
        """Looks at the channel in its loop."""
        self._channel = channel
        self._endpoint = endpoint
        self._loop = loop
        # A command begins without a connection.
        self._was_connecting = True
        self._said = False

    def watch(self) -> None:
        """Looks again after some seconds, for as long as the loop runs."""
        self._loop.call_later(_SILENT_SECONDS, self._look)

    def _look(self) -> None:
        connecting = self._channel.is_connecting
        if not connecting:
            self._said = False
        elif self._was_connecting and not self._said:
            self._said = True
            click.echo(f"retinue: {safe(self._endpoint)} does not answer; still trying, Ctrl-C ends it", err=True)
        self._was_connecting = connecting
        self.watch()


pass_connection = click.make_pass_decorator(Connection)


def asynchronous(
    command: Callable[_Parameters, Coroutine[Any, Any, _Value]],
) -> Callable[_Parameters, _Value | int]:
    """Makes a command of a coroutine function: runs it in an event loop of its own."""

    @functools.wraps(command)
    def run(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Value | int:
        return run_interruptible(_until_terminated(command(*arguments, **options)))

    return run


async def _until_terminated(command: Coroutine[Any, Any, _Value]) -> _Value | int:
    """Returns what a command does; SIGTERM cancels it, so that it leaves the terminal as it was."""
    import asyncio  # noqa: PLC0415  # as above
    import signal  # noqa: PLC0415  # as above

    from retinue.client.command.shell.signals import handled  # noqa: PLC0415  # as above

    terminated = False
    task = asyncio.current_task()

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        if task is not None:
            task.cancel()

    if os.name != "posix":
        return await command
    with handled({signal.SIGTERM: terminate}):
        try:
            return await command
        except asyncio.CancelledError:
            if not terminated:
                raise
            return ExitCode.TERMINATED
