"""The commands `retinue-manager admin`: backups of the database, and what is done after a restore by other means."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import click
import psycopg
import sqlalchemy

from retinue.manager import installation, options
from retinue.manager.installation import CA_CERTIFICATE, CA_KEY, BusyError, MismatchError
from retinue.manager.store.backups import rows
from retinue.manager.store.backups.archive import Archive, BadBackupError, Manifest, opened, writing
from retinue.manager.store.backups.restore import OccupiedError, begin_incarnation, restore, violated_invariants
from retinue.manager.store.database import StoreUnavailable, translate
from retinue.manager.store.embedded import EmbeddedServer, EmbeddedServerError
from retinue.manager.store.migrations import (
    NoDatabaseError,
    SchemaTooNewError,
    SchemaTooOldError,
    WrongEncodingError,
    check,
    synchronous_engine,
)
from retinue.rpc.logs import configure_logging

EXPECTED = (
    BusyError,
    BadBackupError,
    EmbeddedServerError,
    MismatchError,
    NoDatabaseError,
    OccupiedError,
    SchemaTooNewError,
    SchemaTooOldError,
    StoreUnavailable,
    WrongEncodingError,
    rows.NoClusterError,
    OSError,
    ValueError,
)
"""What commands report in one line."""

_new_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_file = click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's work; what may be expected to go wrong ends it with one line."""
    configure_logging("text", "warning")
    try:
        asyncio.run(work)
    except EXPECTED as error:
        raise click.ClickException(str(error)) from error
    except (sqlalchemy.exc.DBAPIError, psycopg.Error) as error:
        raise click.ClickException(str(translate(error) or error)) from error


@click.group()
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
    run(_back_up(file, data_dir, database_url))


async def _back_up(file: Path, data_dir: Path, url: str) -> None:
    async with installation.existing_database(data_dir, url) as database:
        found = await asyncio.to_thread(_write, file, database.url.render_as_string(hide_password=False), data_dir)
    click.echo(f"{found.rows} rows of cluster {found.cluster_id} at {found.create_time} are in {file}")
    if CA_KEY not in found.files:
        click.echo(
            f"{data_dir} has no certificate authority: back up {CA_KEY} and {CA_CERTIFICATE} of a manager's data directory as well",
            err=True,
        )


def _write(file: Path, url: str, data_dir: Path) -> Manifest:
    with writing(file) as writer:
        for name in (CA_KEY, CA_CERTIFICATE):
            with contextlib.suppress(FileNotFoundError):
                writer.add_file(name, (data_dir / name).read_bytes())
        with _connected(url) as connection:
            return writer.finish(rows.copy_out(connection, writer))


@admin.command("verify")
@_file
def _verify(file: Path) -> None:
    """Restore FILE into a database that is made for that and removed afterwards,
    and check that its rows agree with each other.
    """
    run(_check(file))


async def _check(file: Path) -> None:
    with opened(file) as archive:
        directory = await asyncio.to_thread(_scratch_directory)
        server = EmbeddedServer(directory / "postgres", durable=False)
        try:
            url = await server.start()
            await asyncio.to_thread(_restore, url, archive, replace=False)
            wrong = await asyncio.to_thread(_find_wrong, url)
        finally:
            await server.stop()
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        if wrong:
            raise BadBackupError(f"{file} is whole, but its rows do not agree: {'; '.join(wrong)}")
        manifest = archive.manifest
        click.echo(f"{manifest.rows} rows of cluster {manifest.cluster_id} at {manifest.create_time}: good")


@admin.command("restore")
@_file
@options.some_config
@options.data_directory
@options.database_url
@click.option("--replace", is_flag=True, help="Lose what the cluster's database holds now.")
def _restore_command(file: Path, data_dir: Path, database_url: str, *, replace: bool) -> None:
    """Bring the database back to what it was when FILE was written. Every manager must be stopped.

    The database is to be empty or, with --replace, that of the same cluster. What runs on agents and is not in FILE
    runs on: after the start of a manager `retinue agents orphans` lists it.
    """
    run(_bring_back(file, data_dir, database_url, replace=replace))


async def _bring_back(file: Path, data_dir: Path, url: str, *, replace: bool) -> None:
    with opened(file) as archive:
        manifest = archive.manifest
        there = installation.read_cluster_id(data_dir)
        if there not in {"", manifest.cluster_id}:
            raise MismatchError(f"{data_dir} belongs to cluster {there}, and the backup to {manifest.cluster_id}")
        installation.refuse_other_authority(data_dir, manifest.ca_fingerprint)
        installation.prepare_directory(data_dir)
        with installation.alone(data_dir):
            server = None if url else installation.embedded_server(data_dir)
            try:
                target = url or await server.start() if server is not None else url
                await asyncio.to_thread(_restore, target, archive, replace=replace)
            finally:
                if server is not None:
                    await server.stop()
            if CA_KEY in manifest.files and not (data_dir / CA_KEY).exists():
                installation.install_authority(data_dir, archive.read_file(CA_KEY), archive.read_file(CA_CERTIFICATE))
            installation.write_cluster_id(data_dir, manifest.cluster_id)
    click.echo(f"restored {manifest.rows} rows of {manifest.create_time}; start the manager")


@admin.command("begin-incarnation")
@options.some_config
@options.data_directory
@options.database_url
def _begin_incarnation(data_dir: Path, database_url: str) -> None:
    """Say that the database was brought back to an earlier time by other means: a copy of its disk,
    recovery to a point in time.

    Without it agents refuse the manager, as its leadership seems to be an old one. Every manager must be stopped.
    """

    async def begin() -> None:
        async with installation.existing_url(data_dir, database_url) as url:
            await check(url)
            engine = synchronous_engine(url)
            try:
                click.echo(await asyncio.to_thread(begin_incarnation, engine))
            finally:
                engine.dispose()

    run(begin())


def _scratch_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="retinue-verify-"))
    # The database's user must pass through.
    directory.chmod(0o711)
    return directory


def _restore(url: str, archive: Archive, *, replace: bool) -> str:
    engine = synchronous_engine(url)
    try:
        return restore(engine, archive, replace=replace)
    finally:
        engine.dispose()


def _find_wrong(url: str) -> list[str]:
    with _connected(url) as connection:
        return violated_invariants(connection)


@contextlib.contextmanager
def _connected(url: str) -> Iterator[rows.Connection]:
    engine = synchronous_engine(url)
    try:
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)  # noqa: S101  # the engine's dialect
            yield driver
    finally:
        engine.dispose()
