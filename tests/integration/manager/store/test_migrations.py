"""Tables and migrations agree, managers may migrate at once, and a newer schema is left alone."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlmodel import SQLModel

from retinue.manager.store import tables
from retinue.manager.store.migrations import SchemaTooNewError, configuration, migrate
from retinue.manager.store.postgres.connections import parse_url
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.examination import WrongEncodingError
from tests.integration.manager.rows import submit
from tests.support.databases import Postgres

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


def execute(url: str, statement: str) -> object:
    engine = sqlalchemy.create_engine(parse_url(url), poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        result = connection.execute(sqlalchemy.text(statement))
        return result.scalar() if result.returns_rows else None


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


async def test_down_and_up_again(database_url: str) -> None:
    def down() -> None:
        engine = sqlalchemy.create_engine(parse_url(database_url), poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            config = configuration()
            config.attributes["connection"] = connection
            command.downgrade(config, "base")
            connection.commit()

    await asyncio.to_thread(down)
    count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
    assert await asyncio.to_thread(execute, database_url, count) == 0
    await migrate(database_url)
    assert await asyncio.to_thread(differences, database_url) == []


def go(url: str, step: Callable[[Config, str], None], revision: str) -> None:
    engine = sqlalchemy.create_engine(parse_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        config = configuration()
        config.attributes["connection"] = connection
        step(config, revision)
        connection.commit()


async def test_results_keep_what_was_renamed(database_url: str) -> None:
    database = Database(database_url)
    try:
        await submit(database, "ann", "old")
    finally:
        await database.dispose()
    await asyncio.to_thread(go, database_url, command.downgrade, "0042")
    ended = """
        UPDATE session SET state = 'TERMINATED', result = 'FAILURE';
        INSERT INTO journal (revision, session_id, owner, project, kind, payload)
        SELECT revision + 1, session_id, owner, project, 'SESSION_MOVED', '{"to_state": "TERMINATED", "result": "FAILURE"}' FROM journal
    """
    await asyncio.to_thread(execute, database_url, ended)
    await asyncio.to_thread(go, database_url, command.upgrade, "head")
    results = "SELECT string_agg(result, ',') || ',' || (SELECT payload->>'result' FROM journal WHERE kind = 'SESSION_MOVED') FROM session"
    assert await asyncio.to_thread(execute, database_url, results) == "FAILED,FAILED"


async def test_sessions_that_are_there_get_numbers(database_url: str) -> None:
    database = Database(database_url)
    try:
        for name in ("a", "b"):
            await submit(database, "ann", name)
        await asyncio.to_thread(go, database_url, command.downgrade, "0047")
        recorded = "SELECT count(*) FROM journal WHERE payload->'session' ? 'number'"
        assert await asyncio.to_thread(execute, database_url, recorded) == 0
        await asyncio.to_thread(go, database_url, command.upgrade, "head")
        await submit(database, "ann", "c")
    finally:
        await database.dispose()
    named = "SELECT string_agg(name || number, ',' ORDER BY number) FROM session"
    assert await asyncio.to_thread(execute, database_url, named) == "a1,b2,c3"
    told = "SELECT string_agg(payload->'session'->>'number', ',' ORDER BY revision) FROM journal"
    assert await asyncio.to_thread(execute, database_url, told) == "1,2,3"


async def test_requests_keep_what_was_renamed(database_url: str) -> None:
    database = Database(database_url)
    try:
        await submit(database, "ann", "old", earliest_start_time=1e9)
    finally:
        await database.dispose()
    await asyncio.to_thread(go, database_url, command.downgrade, "0028")
    keys = "SELECT spec ?& ARRAY['starts_at', 'services'] AND NOT spec ?| ARRAY['earliest_start_time', 'apps'] FROM session"
    assert await asyncio.to_thread(execute, database_url, keys) is True
    await asyncio.to_thread(go, database_url, command.upgrade, "head")
    assert (
        await asyncio.to_thread(execute, database_url, "SELECT spec ? 'apps' AND NOT spec ? 'services' FROM session")
        is True
    )
    value = "SELECT (spec->>'earliest_start_time')::float8 FROM session"
    assert await asyncio.to_thread(execute, database_url, value) == 1e9


async def test_what_is_migrated_is_logged_once(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    head = ScriptDirectory.from_config(configuration()).get_current_head()
    await asyncio.to_thread(go, database_url, command.downgrade, "0048")
    name = "retinue.manager.store.migrations"

    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == name]

    with caplog.at_level(logging.INFO, name):
        await migrate(database_url)
        steps = logged()
        assert steps[0] == f"migrating the database from 0048 to {head}"
        assert steps[1] == "migrated to 0049"
        assert re.fullmatch(rf"migrated the database from 0048 to {head} in \d+\.\d s", steps[-2])
        assert re.fullmatch(rf"the database is PostgreSQL \d+\.\d+.*, its schema at revision {head}", steps[-1])
        caplog.clear()
        await migrate(database_url)
        assert logged() == steps[-1:]


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


async def test_what_agents_offer_when_a_manager_is_upgraded_is_what_they_have_ever_offered(database_url: str) -> None:
    def revision(change: Callable[[Config, str], None], number: str) -> None:
        engine = sqlalchemy.create_engine(parse_url(database_url), poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            config = configuration()
            config.attributes["connection"] = connection
            change(config, number)
            connection.commit()

    await asyncio.to_thread(revision, command.downgrade, "0041")
    await asyncio.to_thread(
        execute,
        database_url,
        """
            INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture,
                software_version, underlay_address, underlay_mtu, boot_id, version, generation, capacity, backends)
            SELECT id, 'default', 'ALIVE', FALSE, FALSE, '', '', '', '', '', 0, '', 1, 1, capacity::jsonb, backends::jsonb
            FROM (VALUES ('a', '{"cpu": 1000, "gpu": 1000}', '["docker", "process"]'), ('new', '{}', '[]'), ('odd', '{}', '8'))
                AS row (id, capacity, backends)
        """,
    )
    await asyncio.to_thread(revision, command.upgrade, "0042")
    offers = "SELECT jsonb_agg(jsonb_build_array(past_slots, past_backends) ORDER BY id) FROM agent"
    assert await asyncio.to_thread(execute, database_url, offers) == [
        [["cpu", "gpu"], ["docker", "process"]],
        [[], []],
        [[], []],
    ]
