"""Every row of the database, out of it and into it, over one connection of psycopg."""

from __future__ import annotations

import datetime as dt
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from retinue.manager.store.backups.archive import Archive, ArchiveWriter, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Connection = psycopg.Connection[tuple[Any, ...]]

# The revision is in the manifest; marks of changes matter to the leader of the moment only.
_LEFT_OUT = ("alembic_version", "scheduling_change")


class NoClusterError(Exception):
    """The database holds no cluster."""


def copy_out(connection: Connection, writer: ArchiveWriter) -> Manifest:
    """Adds every table as it is at one moment. Managers may continue to write.
    Raises NoClusterError and psycopg.Error.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        manifest = _describe(connection)
        for table in tables_of(connection):
            columns = _columns(connection, table)
            writer.add_table(table, columns, _read(connection, table, columns))
    return manifest


def tables_of(connection: Connection) -> list[str]:
    """The tables of which a backup holds the rows, each after those that it refers to."""
    found = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename <> ALL(%s) ORDER BY tablename",
        (list(_LEFT_OUT),),
    )
    order: TopologicalSorter[str] = TopologicalSorter({name: () for (name,) in found})
    references = connection.execute(
        """
        SELECT c.relname, r.relname FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_class r ON r.oid = f.confrelid
        WHERE f.contype = 'f' AND f.connamespace = current_schema()::regnamespace AND f.conrelid <> f.confrelid
        """
    )
    for table, referred in references:
        order.add(table, referred)
    return list(order.static_order())


def copy_in(connection: Connection, archive: Archive) -> None:
    """Puts all rows in place of those that are there, in the transaction that is open.
    The schema is at the backup's revision.
    """
    tables = archive.manifest.tables
    present = tables_of(connection)
    missing = tables.keys() - set(present)
    if missing:
        raise ValueError(f"the schema has no table {', '.join(sorted(missing))}")
    for table in present:
        # What triggers would make of the rows is among them.
        connection.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(sql.Identifier(table)))
    names = sql.SQL(", ").join(map(sql.Identifier, present))
    connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(names))
    for table in present:
        if table in tables:
            _write(connection, table, tables[table].columns, archive.read_table(table))
        _set_sequences(connection, table)
    for table in present:
        connection.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER USER").format(sql.Identifier(table)))


def _describe(connection: Connection) -> Manifest:
    present = connection.execute("SELECT to_regclass('alembic_version'), to_regclass('cluster')").fetchone()
    if present is None or None in present:
        raise NoClusterError("the database holds no cluster")
    row = connection.execute(
        "SELECT version_num, cluster_id::text, incarnation::text, ca_fingerprint, now() FROM alembic_version CROSS JOIN cluster"
    ).fetchone()
    if row is None:
        raise NoClusterError("the database holds no cluster")
    schema, cluster_id, incarnation, fingerprint, now = row
    return Manifest(schema, cluster_id, incarnation, fingerprint, now.astimezone(dt.UTC).isoformat())


def _columns(connection: Connection, table: str) -> list[str]:
    """The columns that hold what was written, and not what follows from others."""
    rows = connection.execute(
        """
        SELECT attname FROM pg_attribute
        WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
        """,
        (f'"{table}"',),
    )
    return [name for (name,) in rows]


def _copy(table: str, columns: Sequence[str], direction: str) -> sql.Composed:
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("COPY {} ({}) {}").format(sql.Identifier(table), names, sql.SQL(direction))


def _read(connection: Connection, table: str, columns: Sequence[str]) -> Iterator[bytes | bytearray | memoryview]:
    with connection.cursor() as cursor, cursor.copy(_copy(table, columns, "TO STDOUT")) as copy:
        yield from copy


def _write(connection: Connection, table: str, columns: Sequence[str], chunks: Iterator[bytes]) -> None:
    with connection.cursor() as cursor, cursor.copy(_copy(table, columns, "FROM STDIN")) as copy:
        for chunk in chunks:
            copy.write(chunk)


def _set_sequences(connection: Connection, table: str) -> None:
    """Numbers that are given from here on follow those that were given."""
    for column in _columns(connection, table):
        found = connection.execute("SELECT pg_get_serial_sequence(%s, %s)", (f'"{table}"', column)).fetchone()
        if found is None or found[0] is None:
            continue
        connection.execute(
            sql.SQL("SELECT setval(%s, coalesce(max({0}), 1), max({0}) IS NOT NULL) FROM {1}").format(
                sql.Identifier(column), sql.Identifier(table)
            ),
            (found[0],),
        )
