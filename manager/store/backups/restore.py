"""A backup in place of what a database holds, wholly or not at all.

The restored database is another incarnation: agents and watchers find out by it that history has gone back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg

from retinue.manager.store.accounts.audit import recording_command
from retinue.manager.store.backups import rows
from retinue.manager.store.migrations import known, locked, revision_of, upgrade
from retinue.manager.store.postgres.cluster import BEGIN_INCARNATION

if TYPE_CHECKING:
    import sqlalchemy

    from retinue.manager.store.backups.archive import Archive
    from retinue.manager.store.backups.rows import Connection

_CLOSING_SECONDS, _POLL_SECONDS = 1.0, 0.05
_CHECKS = {
    "the journal has gaps": """
        SELECT (SELECT count(*) FROM journal WHERE revision > oldest) <> revision - oldest FROM journal_head
    """,
    "attempts that have ended hold claims, or live ones none that they should": """
        SELECT EXISTS (
            SELECT FROM claim c JOIN attempt a USING (kernel_id, epoch) WHERE c.release_time IS NULL AND a.end_time IS NOT NULL
        ) OR EXISTS (
            SELECT FROM attempt a JOIN kernel k ON k.id = a.kernel_id
            WHERE a.end_time IS NULL AND k.slots <> '{}' AND NOT EXISTS (
                SELECT FROM claim c WHERE c.kernel_id = a.kernel_id AND c.epoch = a.epoch AND c.release_time IS NULL
            )
        )
    """,
    "a kernel has more than one live attempt": """
        SELECT EXISTS (SELECT FROM attempt WHERE end_time IS NULL GROUP BY kernel_id HAVING count(*) > 1)
    """,
    "sessions have no kernels": """
        SELECT EXISTS (SELECT FROM session s WHERE NOT EXISTS (SELECT FROM kernel k WHERE k.session_id = s.id))
    """,
    "sessions that have ended have live attempts": """
        SELECT EXISTS (
            SELECT FROM attempt a JOIN session s ON s.id = a.session_id
            WHERE a.end_time IS NULL AND s.state IN ('TERMINATED', 'CANCELLED')
        )
    """,
}


class OccupiedError(Exception):
    """The database holds something, or managers use it."""


def restore(engine: sqlalchemy.Engine, archive: Archive, *, replace: bool = False) -> str:
    """Restores a backup into a database that is empty or, with `replace`, holds the same cluster.
    Returns the new incarnation.

    Raises OccupiedError, SchemaTooNewError, SchemaTooOldError, and sqlalchemy.exc.DBAPIError or psycopg.Error when the
    database fails; then it is as it was.
    """
    with engine.connect() as connection, locked(connection):
        schema = known(archive.manifest.schema)
        driver = _driver(connection)
        with connection.begin():
            _refuse_managers(driver)
            _clear(driver, revision_of(connection), archive, replace=replace)
            upgrade(connection, schema)
            rows.copy_in(driver, archive)
            upgrade(connection, "head")
            incarnation = _begin_incarnation(driver)
            manifest = archive.manifest
            connection.execute(
                recording_command(
                    "admin restore", "cluster", manifest.cluster_id, f"create_time={manifest.create_time}"
                )
            )
        with connection.begin():
            driver.execute("ANALYZE")
    return incarnation


def begin_incarnation(engine: sqlalchemy.Engine) -> str:
    """Says that a database was brought back to an earlier time by other means. Raises OccupiedError."""
    with engine.connect() as connection, locked(connection), connection.begin():
        driver = _driver(connection)
        _refuse_managers(driver)
        return _begin_incarnation(driver)


def _driver(connection: sqlalchemy.Connection) -> Connection:
    # The transaction is SQLAlchemy's; COPY is the driver's alone.
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101  # the engine's dialect
    return driver


def _refuse_managers(driver: Connection) -> None:
    # The server takes a moment to see that connections were closed.
    deadline = time.monotonic() + _CLOSING_SECONDS
    while True:
        found = driver.execute(
            """
            SELECT count(*), pg_stat_clear_snapshot() FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'retinue-%'
            """
        ).fetchone()
        if found is not None and not found[0]:
            return
        if time.monotonic() >= deadline:
            raise OccupiedError("a manager uses the database: stop every manager first")
        time.sleep(_POLL_SECONDS)


def _clear(driver: Connection, revision: str | None, archive: Archive, *, replace: bool) -> None:
    tables = [name for (name,) in driver.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")]
    if not tables:
        return
    if revision is None:
        raise OccupiedError("the database holds tables of something else: give an empty one")
    there = _cluster_id(driver) if "cluster" in tables else ""
    if there != archive.manifest.cluster_id:
        raise OccupiedError(
            f"the database holds cluster {there or 'of an older version'}, the backup is of {archive.manifest.cluster_id}: give an empty one"
        )
    if not replace:
        raise OccupiedError(
            f"the database holds cluster {there} already: give an empty one, or --replace to lose what it holds"
        )
    driver.execute("DROP TABLE {} CASCADE".format(", ".join(f'"{name}"' for name in tables)).encode())
    functions = driver.execute(
        """
        SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace
            AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
        """
    ).fetchall()
    for (function,) in functions:
        driver.execute(f"DROP FUNCTION {function} CASCADE".encode())


def _cluster_id(driver: Connection) -> str:
    found = driver.execute("SELECT cluster_id::text FROM cluster").fetchone()
    return "" if found is None else str(found[0])


def _begin_incarnation(driver: Connection) -> str:
    found = driver.execute(BEGIN_INCARNATION.encode()).fetchone()
    if found is None:
        raise rows.NoClusterError("the database holds no cluster")
    return str(found[0])


def violated_invariants(connection: Connection) -> list[str]:
    """Returns the invariants between the rows of a database that a backup was restored into and that do not hold,
    in words.
    """
    violated = []
    for words, query in _CHECKS.items():
        found = connection.execute(query.encode()).fetchone()
        if found is None or found[0]:
            violated.append(words)
    return violated
