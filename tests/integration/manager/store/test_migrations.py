"""Tables and migrations agree, managers may migrate at once, and a newer schema is left alone."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import pytest_asyncio
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlmodel import SQLModel

from retinue.manager.domain.session.events import SessionCreated, parse_event
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.spec_columns import KernelColumns, SpecColumns, members
from retinue.manager.store import tables
from retinue.manager.store.migrations import (
    SchemaTooNewError,
    SchemaTooOldError,
    check,
    configuration,
    history,
    migrate,
    revisions,
)
from retinue.manager.store.postgres.connections import parse_url
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.examination import WrongEncodingError
from retinue.manager.store.sessions import sessions
from tests.integration.manager.rows import submit
from tests.integration.manager.store.revisions import add_later_revision, make_former

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.databases import Postgres

LOGGER = "retinue.manager.store.migrations"
pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def empty_url(postgres: Postgres) -> AsyncIterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name}")
    try:
        yield postgres.url_of(name)
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def differences(url: str) -> list[object]:
    engine = sqlalchemy.create_engine(parse_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, SQLModel.metadata))


def create_all(url: str) -> None:
    engine = sqlalchemy.create_engine(parse_url(url), poolclass=sqlalchemy.NullPool)
    SQLModel.metadata.create_all(engine)


# What tables are made of, in no order: columns, constraints, indexes, settings.
CATALOG = """
    SELECT concat_ws(' ', attrelid::regclass || ': COLUMN', attname, format_type(atttypid, atttypmod), attnotnull, attgenerated,
        attidentity, pg_get_expr(adbin, adrelid))
    FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
    WHERE attrelid IN (SELECT oid FROM ours) AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT concat_ws(' ', conrelid::regclass || ': CONSTRAINT', conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE conrelid IN (SELECT oid FROM ours) AND contype <> 'n'
    UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid IN (SELECT oid FROM ours)
    UNION ALL SELECT concat_ws(' ', relname || ': TABLE', relpersistence, reloptions::text) FROM ours
"""
ROUTINES = """
    SELECT oid::regprocedure || regexp_replace(prosrc, '\\s', '', 'g') FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM ours) AND NOT tgisinternal
"""


def catalog(url: str, query: str = CATALOG) -> set[str]:
    with psycopg.connect(url) as connection:
        ours = "SELECT * FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"
        found = {row[0] for row in connection.execute(f"WITH ours AS ({ours}) {query}".encode())}
    assert found
    return found


def routines(url: str) -> set[str]:
    return catalog(url, ROUTINES)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def execute(url: str, statement: str) -> object:
    engine = sqlalchemy.create_engine(parse_url(url), poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        result = connection.execute(sqlalchemy.text(statement))
        return result.scalar() if result.returns_rows else None


async def stored_columns(database: Database, name: str) -> dict[str, Any]:
    """Returns what is in the columns that are written from a session's spec, and in those of its main kernel."""
    columns = ", ".join(f"s.{field.name}" for field in fields(SpecColumns))
    query = f"SELECT {columns}, k.image, k.isolation FROM session s JOIN kernel k USING (id) WHERE s.name = :name"  # noqa: S608  # our own
    async with database.transaction() as tx:
        return dict((await tx.execute(sqlalchemy.text(query), {"name": name})).mappings().one())


async def columns_by_spec(database: Database, name: str) -> dict[str, Any]:
    """Returns what has to be in them."""
    async with database.transaction() as tx:
        session_id = (
            await tx.execute(sqlalchemy.text("SELECT id FROM session WHERE name = :name"), {"name": name})
        ).scalar_one()
        spec = (await sessions.read(tx, [session_id]))[session_id].spec
    assert isinstance(spec, SessionSpec)
    assert spec.name == name
    columns = {**members(SpecColumns.of(spec)), **members(KernelColumns.of(spec, "main"))}
    return {**columns, "agents": list(spec.agents)}


async def test_tables_and_migrations_agree(database_url: str) -> None:
    assert tables.Session.__tablename__ in SQLModel.metadata.tables
    assert await asyncio.to_thread(differences, database_url) == []


async def test_a_difference_would_be_found(database_url: str) -> None:
    await asyncio.to_thread(execute, database_url, "ALTER TABLE session DROP COLUMN message")
    await asyncio.to_thread(execute, database_url, "DROP INDEX session_queue")
    assert len(await asyncio.to_thread(differences, database_url)) == 2


async def test_many_managers_start_at_once(empty_url: str) -> None:
    await asyncio.gather(*(migrate(empty_url) for _ in range(5)))
    seeds = "SELECT (SELECT count(*) FROM journal_head) || ',' || (SELECT count(*) FROM project) || ',' || (SELECT term FROM leadership)"
    assert await asyncio.to_thread(execute, empty_url, seeds) == "1,1,0"


async def test_the_classes_make_the_tables_that_migrations_make(database_url: str, empty_url: str) -> None:
    await asyncio.to_thread(create_all, empty_url)
    made = await asyncio.to_thread(catalog, empty_url)
    assert "cluster: CONSTRAINT cluster_one_row CHECK ((id = 1))" in made
    assert made == await asyncio.to_thread(catalog, database_url)


async def test_revisions_are_named_as_their_files() -> None:
    scripts = list(ScriptDirectory.from_config(configuration()).walk_revisions())
    # The order of their names is that of the history, as alembic has it.
    assert [script.revision for script in reversed(scripts)] == history()
    for script in scripts:
        assert script.revision == Path(script.path).stem
        # The column that has it takes no more.
        assert len(script.revision) <= 32


async def test_a_cluster_of_before_the_first_release_is_upgraded(
    database_url: str, empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(make_former, empty_url)
    asked = """
        {"hold": true, "labels": {"a": "b"}, "agents": ["n1", "n2"], "agents_strict": true, "architecture": "aarch64", "preemptible": true,
        "replica_placement": "PACK", "earliest_start_time": 1e9, "time_limit_seconds": 60, "grace_seconds": 3, "isolations": {"main": "VM"},
        "retry": {"max_attempts": 3, "on_failure": true, "backoff_seconds": 1, "max_backoff_seconds": 2},
        "roles": {"main": {"image": "i", "command": [], "environment": {}, "slots": {}, "isolation": null}}}
    """
    with psycopg.connect(empty_url) as connection:
        connection.execute("UPDATE session SET spec = spec || %s::jsonb", [asked])
    with pytest.raises(SchemaTooOldError, match="start a manager of this version first"):
        await check(empty_url)
    with caplog.at_level(logging.INFO, LOGGER):
        await migrate(empty_url)
    assert "the schema of revision 0055 is that of 0001_first" in logged(caplog)
    await check(empty_url)
    for look in (catalog, routines):
        assert await asyncio.to_thread(look, empty_url) == await asyncio.to_thread(look, database_url)
    database = Database(empty_url)
    try:
        # Triggers and sequences work.
        await submit(database, "ann", "new")
        assert await stored_columns(database, "old") == await columns_by_spec(database, "old")
        assert await stored_columns(database, "new") == await columns_by_spec(database, "new")
    finally:
        await database.dispose()
    created = await asyncio.to_thread(execute, empty_url, "SELECT payload::text FROM journal WHERE revision = 1")
    assert isinstance(event := parse_event("CREATED", str(created)), SessionCreated)
    assert isinstance(event.spec, SessionSpec)
    names = "SELECT string_agg(name || number, ',' ORDER BY number) FROM session"
    assert await asyncio.to_thread(execute, empty_url, names) == "old1,new2"
    marked = "SELECT count(DISTINCT key) FROM scheduling_change WHERE kind = 'session'"
    assert await asyncio.to_thread(execute, empty_url, marked) == 2


@pytest.mark.parametrize("revision", ["0001", "0054"])
async def test_an_older_cluster_is_left_alone(empty_url: str, revision: str) -> None:
    await asyncio.to_thread(make_former, empty_url)
    await asyncio.to_thread(execute, empty_url, f"UPDATE alembic_version SET version_num = '{revision}'")  # noqa: S608  # our own
    for refuse in (migrate, check, revisions):
        with pytest.raises(SchemaTooOldError, match=rf"at revision {revision} .* takes 0055 only"):
            await refuse(empty_url)
    assert await asyncio.to_thread(execute, empty_url, "SELECT version_num FROM alembic_version") == revision


async def test_what_is_migrated_is_logged_once(
    database_url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ScriptDirectory.from_config(configuration()).get_current_head()
    add_later_revision(monkeypatch, tmp_path)
    with caplog.at_level(logging.INFO, LOGGER):
        await migrate(database_url)
        steps = logged(caplog)
        assert steps[0] == f"migrating the database from {before} to 9999_later"
        assert steps[1] == "migrated to 9999_later"
        assert re.fullmatch(rf"migrated the database from {before} to 9999_later in \d+\.\d s", steps[2])
        assert re.fullmatch(r"the database is PostgreSQL \d+\.\d+.*, its schema at revision 9999_later", steps[3])
        caplog.clear()
        await migrate(database_url)
        assert logged(caplog) == steps[3:]
    assert await asyncio.to_thread(execute, database_url, "SELECT count(*) FROM later") == 0


async def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    await asyncio.to_thread(execute, database_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaTooNewError, match=r"the database is newer than this program.* 9999"):
        await migrate(database_url)
    assert await asyncio.to_thread(execute, database_url, "SELECT count(*) FROM project") == 1


async def test_a_database_that_is_not_there(tmp_path: object) -> None:
    with pytest.raises(StoreUnavailable):
        await migrate(f"postgresql://x@/x?host={tmp_path}")


@pytest.mark.parametrize("url", ["", "x", "mysql://a/b", "postgresql+asyncpg://a/b"])
async def test_bad_urls(url: str) -> None:
    with pytest.raises(ValueError, match="database URL"):
        Database(url)


async def test_attempts_go_with_their_session(database_url: str) -> None:
    made = """
        INSERT INTO session (id, name, owner, project, resource_group, type, cluster_mode, cluster_size, priority, state, result, reason, message,
            network, tries, failed_starts, last_failure, force, version)
        SELECT CAST(id AS uuid), id, 'o', 'default', 'default', 'batch', 'SINGLE_NODE', 1, 10, 'RUNNING', 'UNDEFINED', '', '', '', 1, 0, '', FALSE, 1
        FROM unnest(ARRAY['00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002']) AS id;
        INSERT INTO kernel (id, session_id, role, role_index, local_rank, hostname, slots, state, epoch, address, reason)
        SELECT id, id, 'main', 1, 0, 'main1', '{}', 'RUNNING', 1, '', '' FROM session;
        INSERT INTO attempt (kernel_id, epoch, session_id, agent_id, goal, observed, term, log_pending)
        SELECT id, epoch, id, 'a', 'RUNNING', 'RUNNING', 1, FALSE FROM session CROSS JOIN generate_series(1, 2) AS epoch
    """
    await asyncio.to_thread(execute, database_url, made)
    await asyncio.to_thread(execute, database_url, "DELETE FROM session WHERE name LIKE '%1'")
    left = "SELECT string_agg(right(kernel_id::text, 1), ' ') FROM attempt"
    assert await asyncio.to_thread(execute, database_url, left) == "2 2"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_cannot_keep_every_text_is_refused(postgres: Postgres, encoding: str) -> None:
    name = f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(WrongEncodingError, match=f"encoding is {encoding}; it has to be UTF8"):
            await migrate(postgres.url_of(name))
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
