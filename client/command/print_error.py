"""Prints an error for people."""

from __future__ import annotations

import click

from retinue.client.command.text import safe
from retinue.client.errors import CallError, RetinueError


def print_error(error: RetinueError) -> None:
    """Prints on standard error what went wrong: reason, fields, and the id to look for in the server's log."""
    if not isinstance(error, CallError):
        click.echo(f"retinue: {error}", err=True)
        return
    click.echo(f"retinue: {safe(error.message)}" + (f" [{safe(error.reason)}]" if error.reason else ""), err=True)
    for violation in error.violations:
        click.echo(f"  {safe(violation.field)}: {safe(violation.description)}", err=True)
    if error.request_id:
        click.echo(f"  request {safe(error.request_id)}", err=True)
