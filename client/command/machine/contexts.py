"""`retinue contexts`: the managers that are known by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell import completed_names
from retinue.client.command.shell.connection import Connection, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.show.output import print_plain, table
from retinue.client.errors import UsageError
from retinue.client.settings import contexts_path, read_contexts, with_absolute_ca, write_context

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


@click.group("contexts")
def contexts_command() -> None:
    """List, add and choose contexts: managers that are known by name."""


@contexts_command.command("ls")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml", "name"]), default="table", show_default=True
)
def list_contexts(output: str) -> None:
    """List contexts; the current one has a star. No format prints a token."""
    current, contexts = read_contexts(contexts_path(os.environ))
    if output == "name":
        for name in sorted(contexts):
            click.echo(safe(name))
        return
    if output != "table":
        found = [
            {
                "name": name,
                "endpoint": one.endpoint,
                "ca": one.ca,
                "hasToken": bool(one.token),
                "current": name == current,
            }
            for name, one in sorted(contexts.items())
        ]
        print_plain(output, {"contexts": found})
        return
    rows = [
        ["*" if name == current else "", safe(name), safe(settings.endpoint), "yes" if settings.token else "no"]
        for name, settings in sorted(contexts.items())
    ]
    for line in table(["", "NAME", "ENDPOINT", "TOKEN"], rows, colour=False):
        click.echo(line)


@contexts_command.command("use")
@click.argument("name", shell_complete=completed_names.contexts)
def use_context(name: str) -> None:
    """Make a context the current one."""
    path = contexts_path(os.environ)
    _, contexts = read_contexts(path)
    _require(name, contexts, path)
    write_context(path, name, contexts[name], make_current=True)


def _require(name: str, contexts: Collection[str], path: Path) -> None:
    if name not in contexts:
        raise UsageError(f"there is no context {name!r} in {path}; there is {', '.join(sorted(contexts)) or 'none'}")


@contexts_command.command("add")
@click.argument("name")
@pass_connection
def add_context(connection: Connection, name: str) -> None:
    """Save a manager under a name, as --endpoint, --token and --ca (or the environment) describe it.

    --ca may be a relative path: the absolute one is saved.
    """
    write_context(contexts_path(os.environ), name, with_absolute_ca(connection.settings()))


@contexts_command.command("rm")
@click.argument("name", shell_complete=completed_names.contexts)
def remove_context(name: str) -> None:
    """Forget a context."""
    path = contexts_path(os.environ)
    _, contexts = read_contexts(path)
    _require(name, contexts, path)
    write_context(path, name, None)
