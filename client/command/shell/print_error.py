"""Prints an error for people."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.printable import safe
from retinue.client.errors import CallError, InvalidRequest, NotFound, RetinueError, ServerFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.client.command.shell.connection import Connection

verbose: ContextVar[bool] = ContextVar("verbose", default=False)
"""Whether errors are printed with all that they carry: the option `-v`."""

connection_in_use: ContextVar[Connection | None] = ContextVar("connection_in_use", default=None)
"""The flags that say which manager, for what an error says about them."""
_ID = re.compile(r"[0-9a-f]{8}[0-9a-f-]*")
# What is missing then is often in the context.
_OF_CONTEXT = ("no token:", "is not trusted:")


def print_error(error: RetinueError) -> None:
    """Prints on standard error what went wrong: reason and fields; of faults and with `-v`
    the id to look for in the server's log.
    """
    if not isinstance(error, CallError):
        click.echo(f"retinue: {error}", err=True)
        return
    # Of several things that were named, one was not found. A hint says it by itself.
    name = error.metadata.get("id") if isinstance(error, NotFound) and ":" not in error.message else None
    named = f": {name}{_owner_hint(error, name)}" if name else ""
    reason = f" [{error.reason}]" if error.reason else ""
    # One line says one mistake; several have a line each.
    several = isinstance(error, InvalidRequest) and len(error.violations) > 1
    message = f"{len(error.violations)} fields are wrong" if several else error.message
    click.echo(f"retinue: {safe(message + named + _of_context(error) + reason)}", err=True)
    print_violations(error, message=message)
    if error.request_id and (verbose.get() or isinstance(error, ServerFault)):
        click.echo(f"  request {safe(error.request_id)}", err=True)


def _owner_hint(error: CallError, name: str) -> str:
    """Returns how a session of another user is named, if that may be what was meant."""
    is_name = error.message == "no such session" and "/" not in name and _ID.fullmatch(name) is None
    return f" (one of another user is OWNER/{name})" if is_name else ""


def print_violations(
    error: CallError, name_of: Callable[[str], str] = lambda path: path, *, message: str | None = None
) -> None:
    """Prints on standard error what is wrong with each field, by the name that `name_of` gives it; what `message` says
    already, by default that of the error, is not said twice.
    """
    said = error.message if message is None else message
    for violation in error.violations:
        if violation.description not in said:
            click.echo(f"  {safe(name_of(violation.field))}: {safe(violation.description)}", err=True)


def _of_context(error: CallError) -> str:
    """Returns that a context is not used, if that may be why a call was refused."""
    connection = connection_in_use.get()
    if connection is None or not any(text in error.message for text in _OF_CONTEXT):
        return ""
    source = connection.unused_context()
    return f" (with {source} the context is not used)" if source else ""
