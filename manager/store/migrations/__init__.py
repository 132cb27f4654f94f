"""The schema's history, and the way from any older schema to this program's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from manager.store.database import StoreUnavailable, parse_url, translate

# "migrate" in ASCII. Managers that start together migrate one after the other.
_LOCK = 0x6D696772617465


class SchemaTooNewError(Exception):
    """The database was migrated by a newer program; this one must not touch it."""


class WrongEncodingError(Exception):
    """The database does not keep text as UTF-8, so not every text of a request could be stored."""


async def migrate(url: str) -> None:
    """Brings the schema to this program's revision; nothing happens when it is there already.

    Each revision is one transaction. Raises SchemaTooNewError, WrongEncodingError, StoreUnavailable.
    """
    await asyncio.to_thread(_migrate, url)


def configuration() -> Config:
    """Alembic's configuration of this directory."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def _migrate(url: str) -> None:
    engine = sqlalchemy.create_engine(
        parse_url(url),
        poolclass=sqlalchemy.NullPool,
        # By default it is the database's, and one that has none would answer in bytes before it can be refused.
        connect_args={"connect_timeout": 5, "client_encoding": "utf8"},
    )
    try:
        with engine.connect() as connection:
            encoding = connection.execute(sqlalchemy.text("SHOW server_encoding")).scalar_one()
            if encoding != "UTF8":
                raise WrongEncodingError(
                    f"the database's encoding is {encoding}; it has to be UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
                )
            # Held by the session, not by a transaction: it spans the commits of all revisions.
            connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
            connection.commit()
            config = configuration()
            script = ScriptDirectory.from_config(config)
            current = MigrationContext.configure(connection).get_current_revision()
            known = {revision.revision for revision in script.walk_revisions()}
            if current is not None and current not in known:
                raise SchemaTooNewError(
                    f"the database's schema is at revision {current}, which this program does not know (it ends at "
                    f"{script.get_current_head()}): start a program at least as new as the one that migrated it"
                )
            connection.rollback()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except sqlalchemy.exc.DBAPIError as error:
        raised = translate(error)
        if isinstance(raised, StoreUnavailable):
            raise raised from error
        raise
    finally:
        engine.dispose()
