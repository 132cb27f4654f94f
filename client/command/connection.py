"""Connects commands to a manager, and runs asynchronous commands; shared by all commands."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from retinue.client.client import Client
    from retinue.client.settings import Settings

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")


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

    def client(self) -> Client:
        """Returns a client; to be used inside the event loop, with `async with`. Raises UsageError."""
        from retinue.client.client import Client  # noqa: PLC0415  # it takes longer to import than all the rest

        return Client.from_settings(self.settings())


pass_connection = click.make_pass_decorator(Connection)


def asynchronous(
    command: Callable[_Parameters, Coroutine[Any, Any, _Value]],
) -> Callable[_Parameters, _Value]:
    """Makes a command of a coroutine function: runs it in an event loop of its own."""

    @functools.wraps(command)
    def run(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Value:
        import asyncio  # noqa: PLC0415  # pages of help need none of it

        return asyncio.run(command(*arguments, **options))

    return run
