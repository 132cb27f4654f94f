"""Prints an error for people."""

from __future__ import annotations

from contextvars import ContextVar

import click

from retinue.client.command.printable import safe
from retinue.client.errors import CallError, InvalidRequest, NotFound, RetinueError, ServerFault

verbose: ContextVar[bool] = ContextVar("verbose", default=False)
"""Whether errors are printed with all that they carry: the option `-v`."""


def print_error(error: RetinueError) -> None:
    """Prints on standard error what went wrong: reason and fields; of faults and with `-v`
    the id to look for in the server's log.
    """
    if not isinstance(error, CallError):
        click.echo(f"retinue: {error}", err=True)
        return
    # Of several things that were named, one was not found. A hint says it by itself.
    name = error.metadata.get("id") if isinstance(error, NotFound) and ":" not in error.message else None
    named = f": {name}" if name else ""
    reason = f" [{error.reason}]" if error.reason else ""
    # One line says one mistake; several have a line each.
    several = isinstance(error, InvalidRequest) and len(error.violations) > 1
    message = f"{len(error.violations)} fields are wrong" if several else error.message
    click.echo(f"retinue: {safe(message + named + reason)}", err=True)
    for violation in error.violations:
        if violation.description not in message:
            click.echo(f"  {safe(violation.field)}: {safe(violation.description)}", err=True)
    if error.request_id and (verbose.get() or isinstance(error, ServerFault)):
        click.echo(f"  request {safe(error.request_id)}", err=True)
