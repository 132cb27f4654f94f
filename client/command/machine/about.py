"""`retinue version`, `protos` and `completion`."""

from __future__ import annotations

import importlib.metadata
import platform
from importlib import resources
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from retinue.client.command.shell.package_files import copy_files
from retinue.rpc.version import software_version


@click.command("version")
def version_command() -> None:
    """Print the versions of this program and of what it is built on."""
    click.echo(f"retinue {software_version()}")
    for package in ("grpcio", "protobuf"):
        click.echo(f"{package} {importlib.metadata.version(package)}")
    click.echo(f"python {platform.python_version()}")


@click.command("protos")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def protos_command(directory: Path) -> None:
    """Write the .proto files of the API, and all that they import, into DIRECTORY, for clients in other languages."""
    try:
        # The second are those of protobuf that the first import: not every compiler brings them.
        for part in ("protos", "well_known"):
            for path in copy_files(resources.files("retinue").joinpath(part), directory, ".proto"):
                click.echo(path)
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
      eval "$(retinue completion bash)"
      retinue completion fish > ~/.config/fish/completions/retinue.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(found(context.find_root().command, {}, "retinue", "_RETINUE_COMPLETE").source())
