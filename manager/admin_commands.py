"""The commands `retinue-manager admin`. Their work is imported when they are used: `--help` does not need it."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.manager import options
from retinue.rpc.options import Commands

_new_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_file = click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))


@click.group(cls=Commands)
def admin() -> None:
    """Back up, verify and restore the database."""


@admin.command("backup")
@_new_file
@options.some_config
@options.data_directory
@options.database_url
def _backup(file: Path, data_dir: Path, database_url: str) -> None:
    """Write every row of the database and the certificate authority to FILE, as they are at one moment.

    Managers continue meanwhile. FILE holds secrets: only its owner can read it.
    """
    if not file.absolute().parent.is_dir():
        raise click.ClickException(f"there is no directory {file.absolute().parent}: make it first")
    from retinue.manager import administration  # noqa: PLC0415

    administration.run(administration.back_up(file, data_dir, database_url))


@admin.command("verify")
@_file
def _verify(file: Path) -> None:
    """Restore FILE into a database that is made for that and removed afterwards,
    and check that its rows agree with each other.
    """
    from retinue.manager import administration  # noqa: PLC0415

    administration.run(administration.verify(file))


@admin.command("restore")
@_file
@options.some_config
@options.data_directory
@options.database_url
@click.option("--replace", is_flag=True, help="Lose what the cluster's database holds now.")
def _restore(file: Path, data_dir: Path, database_url: str, *, replace: bool) -> None:
    """Bring the database back to what it was when FILE was written. Every manager must be stopped.

    The database is to be empty or, with --replace, that of the same cluster. What runs on agents and is not in FILE
    runs on: after the start of a manager `retinue agents orphans` lists it.
    """
    from retinue.manager import administration  # noqa: PLC0415

    administration.run(administration.bring_back(file, data_dir, database_url, replace=replace))


@admin.command("begin-incarnation")
@options.some_config
@options.data_directory
@options.database_url
def _begin_incarnation(data_dir: Path, database_url: str) -> None:
    """Say that the database was brought back to an earlier time by other means: a copy of its disk,
    recovery to a point in time.

    Without it agents refuse the manager, as its leadership seems to be an old one. Every manager must be stopped.
    """
    from retinue.manager import administration  # noqa: PLC0415

    administration.run(administration.begin_again(data_dir, database_url))
