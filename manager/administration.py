"""The work of commands of a manager's machine: accounts, agents, backups of the database, and what is done after a
restore by other means.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psycopg
import sqlalchemy

from retinue.manager import development, installation
from retinue.manager.identity.tokens import TOKEN_PREFIX, hash_secret, new_secret
from retinue.manager.installation import CA_CERTIFICATE, CA_KEY, BusyError, MismatchError
from retinue.manager.store.accounts import accounts, audit
from retinue.manager.store.backups import rows
from retinue.manager.store.backups.archive import Archive, BadBackupError, Manifest, opened, writing
from retinue.manager.store.backups.restore import OccupiedError, begin_incarnation, restore, violated_invariants
from retinue.manager.store.fleet import agents
from retinue.manager.store.migrations import (
    NoDatabaseError,
    SchemaTooNewError,
    SchemaTooOldError,
    check,
    revisions,
    synchronous_engine,
)
from retinue.manager.store.postgres.database import StoreUnavailable, translate
from retinue.manager.store.postgres.embedded import EmbeddedServer, EmbeddedServerError
from retinue.manager.store.postgres.examination import UnfitDatabaseError, examine
from retinue.manager.store.sessions import conditions
from retinue.rpc.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

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
    UnfitDatabaseError,
    rows.NoClusterError,
    OSError,
    ValueError,
)
"""What commands report in one line."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's work; what may be expected to go wrong ends it with one line."""
    configure_logging("text", "warning")
    try:
        asyncio.run(work)
    except EXPECTED as error:
        raise click.ClickException(str(error)) from error
    except (sqlalchemy.exc.DBAPIError, psycopg.Error) as error:
        raise click.ClickException(str(translate(error) or error)) from error


async def look_at_database(data_dir: Path, url: str) -> None:
    """Prints what a start would find in the database, and changes nothing. Raises what a start would raise of it."""
    if not url:
        click.echo(f"# the database is the embedded one, in {data_dir}")
        return
    found = await examine(url)
    facts = found.facts
    click.echo(
        f"# database {facts.database}, schema {facts.schema}, as {facts.role}: PostgreSQL {found.version}, "
        f"{facts.used} connections in use, {facts.connections} for this role at most"
    )
    for warning in found.warnings:
        click.echo(f"# warning: {warning}")
    await installation.refuse_second_cluster(data_dir, url)
    current, newest = await revisions(url)
    if current == newest:
        async with installation.existing_database(data_dir, url):
            click.echo(f"# it holds a cluster, with the schema of this program: {newest}")
        return
    if not facts.may_create:
        raise UnfitDatabaseError(
            f"the role {facts.role} may not make tables in schema {facts.schema}: "
            f"GRANT USAGE, CREATE ON SCHEMA {facts.schema} TO {facts.role}"
        )
    click.echo(
        f"# it is empty: `serve` makes a cluster in it, with schema {newest}"
        if current is None
        else f"# it has schema {current}: `serve` brings it to {newest}"
    )


async def back_up(file: Path, data_dir: Path, url: str) -> None:
    """Writes every row and the certificate authority to a file."""
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


async def verify(file: Path) -> None:
    """Restores a file into a database of its own, and checks its rows. Raises BadBackupError."""
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


async def bring_back(file: Path, data_dir: Path, url: str, *, replace: bool) -> None:
    """Brings the database back to what is in a file. Raises MismatchError, OccupiedError."""
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
                for warning in (await examine(target)).warnings:
                    click.echo(warning, err=True)
                await asyncio.to_thread(_restore, target, archive, replace=replace)
            finally:
                if server is not None:
                    await server.stop()
            if CA_KEY in manifest.files and not (data_dir / CA_KEY).exists():
                installation.install_authority(data_dir, archive.read_file(CA_KEY), archive.read_file(CA_CERTIFICATE))
            installation.write_cluster_id(data_dir, manifest.cluster_id)
    click.echo(f"restored {manifest.rows} rows of {manifest.create_time}; start the manager")


async def renew_ca(data_dir: Path, url: str) -> None:
    """Renews the certificate of the authority, and says until when the certificates are good."""
    async with installation.existing_database(data_dir, url) as database:
        authority = await installation.renew_authority(database, data_dir, lambda: dt.datetime.now(dt.UTC))
    click.echo(
        f"the certificate authority is good until {authority.expire_time.date()}: SHA-256 {authority.fingerprint}"
    )
    click.echo(f"copy {data_dir / CA_CERTIFICATE} to clients before the former certificate ends")


async def begin_again(data_dir: Path, url: str) -> None:
    """Begins an incarnation of the cluster, and prints it."""
    async with installation.existing_url(data_dir, url) as existing:
        await check(existing)
        engine = synchronous_engine(existing)
        try:
            click.echo(await asyncio.to_thread(begin_incarnation, engine))
        finally:
            engine.dispose()


async def create_admin(name: str, data_dir: Path, url: str) -> None:
    """Makes an administrator, if there is none of that name, and prints a new token. Raises ClickException."""
    secret = new_secret(TOKEN_PREFIX)
    async with installation.existing_database(data_dir, url) as database, database.transaction() as tx:
        user = await accounts.get_user(tx, name)
        if user is None:
            await accounts.create_user(tx, name, "ADMIN", {})
        elif user.role != "ADMIN":
            raise click.ClickException(f"{name} is a user without administration")
        if await accounts.get_project(tx, development.PROJECT) is not None:
            await accounts.set_membership(tx, name, development.PROJECT, "ADMIN")
        await accounts.create_token(tx, name, hash_secret(secret), description="made by create-admin", ttl=None)
        await tx.execute(audit.recording_command("create-admin", "user", name))
    click.echo(secret)


async def revoke_agent(agent_id: str, data_dir: Path, url: str) -> None:
    """Makes the certificate of an agent worthless. Raises ClickException."""
    async with installation.existing_database(data_dir, url) as database:
        async with database.transaction() as tx:
            if not await agents.revoke(tx, agent_id):
                raise click.ClickException(f"no agent {agent_id} is enrolled")
            await tx.execute(audit.recording_command("revoke-agent", "agent", agent_id))
        # On its own, as sessions are locked before agents.
        async with database.transaction() as tx:
            await conditions.set_agent_lost(tx, agent_id, lost=True)


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
