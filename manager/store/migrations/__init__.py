"""The schema's history, and the way from an older schema to this program's.

A revision is named as its file in `versions`, and comes after those of lower numbers; a file that was published never
changes. `versions/0001_first` is the whole schema as it was then, tables and triggers. A later revision may use
Alembic's operations: `alembic revision --autogenerate` drafts them from the classes in `manager/store/tables`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy

from retinue.manager.store.postgres.connections import connect_arguments, parse_url
from retinue.manager.store.postgres.database import StoreUnavailable, translate
from retinue.manager.store.postgres.examination import examine
from retinue.rpc import failpoints
from retinue.rpc.version import software_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from alembic.config import Config

_log = logging.getLogger(__name__)
# "migrate" in ASCII. Managers that start together migrate one after the other.
_LOCK = 0x6D696772617465
_FIRST = "0001_first"
# Before the first release, revisions were plain numbers. The last of them made the schema that the first one makes now.
_NUMBER, _LAST_NUMBER = re.compile(r"\d{4}"), "0055"


FOLDERS: Sequence[Path] = (Path(__file__).with_name("versions"),)
"""Where the files of the revisions are."""


class SchemaTooNewError(Exception):
    """The database was migrated by a newer program; this one must not touch it."""


class SchemaTooOldError(Exception):
    """The database was not migrated yet, which only a manager that serves does; or it is so old that none can."""


class NoDatabaseError(Exception):
    """The database holds no cluster; only a manager that serves makes one."""


@failpoints.awaited("schema", OSError)
async def migrate(url: str) -> None:
    """Brings the schema to this program's revision; nothing happens when it is there already.

    Each revision is one transaction. What will go wrong with the server is logged. Raises SchemaTooNewError,
    SchemaTooOldError, UnfitDatabaseError, StoreUnavailable.
    """
    for warning in (await examine(url)).warnings:
        _log.warning("%s", warning)
    await asyncio.to_thread(_migrate, url)


def configuration() -> Config:
    """Alembic's configuration of this directory."""
    from alembic.config import Config  # noqa: PLC0415  # of no use to a manager whose schema is as it should be

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(str, FOLDERS)).replace("%", "%%"))
    return config


@failpoints.awaited("schema", OSError)
async def check(url: str) -> None:
    """Returns if the schema is at this program's revision. Raises NoDatabaseError, SchemaTooOldError,
    SchemaTooNewError, StoreUnavailable.
    """
    await asyncio.to_thread(_check, url)


@failpoints.awaited("schema", OSError)
async def revisions(url: str) -> tuple[str | None, str]:
    """Returns the revision of the schema in a database, None of an empty one, and the one that this program brings it
    to. Raises SchemaTooNewError, SchemaTooOldError, StoreUnavailable.
    """
    current = await asyncio.to_thread(_current, url)
    if current is not None:
        known(current)
    return current, _head()


@failpoints.awaited("schema", OSError)
async def is_empty(url: str) -> bool:
    """Returns whether the database holds no schema of ours. Raises StoreUnavailable."""
    return await asyncio.to_thread(_current, url) is None


def synchronous_engine(url: str, purpose: str = "administration") -> sqlalchemy.Engine:
    """For what is done once, and blocks: without a pool."""
    parsed = parse_url(url)
    return sqlalchemy.create_engine(
        parsed,
        poolclass=sqlalchemy.NullPool,
        connect_args={**connect_arguments(parsed), "application_name": f"retinue {purpose}"},
    )


@contextlib.contextmanager
def locked(connection: sqlalchemy.Connection) -> Iterator[None]:
    """Holds off all others that change the schema for as long as the block takes, over any number of commits."""
    connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
    connection.commit()
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            connection.rollback()
            connection.execute(sqlalchemy.text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()


def upgrade(connection: sqlalchemy.Connection, revision: str, *, log_steps: bool = False) -> None:
    """Brings the schema to a revision; in the transaction that is open if there is one,
    else each revision in its own.
    """
    from alembic import command  # noqa: PLC0415  # as above

    config = configuration()
    config.attributes["connection"] = connection
    config.attributes["log_steps"] = log_steps
    command.upgrade(config, revision)


def known(revision: str) -> str:
    """Returns the revision of this history that a schema is at. Raises SchemaTooNewError, SchemaTooOldError."""
    if revision == _LAST_NUMBER:
        return _FIRST
    if _NUMBER.fullmatch(revision) and revision < _LAST_NUMBER:
        raise SchemaTooOldError(
            f"the database is older than this program can upgrade: its schema is at revision {revision} of the time before the "
            f"first release, of which {software_version()} takes {_LAST_NUMBER} only. Start the newest program with that revision "
            "once, or give an empty database for a new cluster"
        )
    if revision not in history():
        raise SchemaTooNewError(
            f"the database is newer than this program: its schema is at revision {revision}, and {software_version()} knows "
            f"those up to {_head()}: start a program at least as new as the one that migrated it"
        )
    return revision


def history() -> list[str]:
    """Returns the revisions of this program, the oldest first."""
    return sorted(path.stem for folder in FOLDERS for path in folder.glob("[0-9]*.py"))


def revision_of(connection: sqlalchemy.Connection) -> str | None:
    """Returns the revision that a schema is at; None where there is none of ours."""
    if not sqlalchemy.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sqlalchemy.text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return None if found is None else str(found)


def _current(url: str) -> str | None:
    engine = synchronous_engine(url)
    try:
        with engine.connect() as connection:
            return revision_of(connection)
    except sqlalchemy.exc.DBAPIError as error:
        raised = translate(error)
        if isinstance(raised, StoreUnavailable):
            raise raised from error
        raise
    finally:
        engine.dispose()


def _check(url: str) -> None:
    current = _current(url)
    if current is None:
        raise NoDatabaseError(
            "the database holds no cluster: is it the right one? `retinue-manager serve` makes one in it"
        )
    known(current)
    if current != (head := _head()):
        raise SchemaTooOldError(
            f"the database's schema is at revision {current}, that of this program is {head}: start a manager of this version first"
        )


def _head() -> str:
    """Returns this program's revision."""
    return history()[-1]


def _upgrade_to_head(connection: sqlalchemy.Connection, current: str | None) -> None:
    """Brings the schema to this program's revision, and logs each step and the time that it took."""
    head = _head()
    if current == head:
        return
    _log.info("migrating the database from %s to %s", current or "an empty one", head)
    began = time.monotonic()
    upgrade(connection, "head", log_steps=current is not None)
    _log.info(
        "migrated the database from %s to %s in %.1f s", current or "an empty one", head, time.monotonic() - began
    )


def _migrate(url: str) -> None:
    engine = synchronous_engine(url, "migration")
    try:
        with engine.connect() as connection, locked(connection):
            current = revision_of(connection)
            same = None if current is None else known(current)
            server = connection.execute(sqlalchemy.text("SHOW server_version")).scalar_one()
            connection.rollback()
            if same != current:
                connection.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = :same"), {"same": same})
                connection.commit()
                _log.info("the schema of revision %s is that of %s", current, same)
            _upgrade_to_head(connection, same)
            _log.info("the database is PostgreSQL %s, its schema at revision %s", server, _head())
    except sqlalchemy.exc.DBAPIError as error:
        raised = translate(error)
        if isinstance(raised, StoreUnavailable):
            raise raised from error
        raise
    finally:
        engine.dispose()
