"""`retinue version` and `completion`."""

from __future__ import annotations

import importlib.metadata
import platform

import click
from click.shell_completion import get_completion_class


@click.command("version")
def version_command() -> None:
    """Prints the versions of this program and of what it is built on."""
    click.echo(f"retinue {importlib.metadata.version('retinue')}")
    for package in ("grpcio", "protobuf"):
        click.echo(f"{package} {importlib.metadata.version(package)}")
    click.echo(f"python {platform.python_version()}")


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Prints the completion script of a shell.

    \b
      eval "$(retinue completion bash)"
      retinue completion fish > ~/.config/fish/completions/retinue.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(found(context.find_root().command, {}, "retinue", "_RETINUE_COMPLETE").source())
