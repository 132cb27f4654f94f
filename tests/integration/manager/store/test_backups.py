"""A backup brings a database back wholly or not at all, and as another incarnation."""

from __future__ import annotations

import asyncio
import os
import uuid
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest
import pytest_asyncio
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy import text

from retinue.manager.store.accounts import accounts, audit
from retinue.manager.store.backups import rows
from retinue.manager.store.backups.archive import Archive, BadBackupError, opened, writing
from retinue.manager.store.backups.restore import OccupiedError, begin_incarnation, restore, violated_invariants
from retinue.manager.store.backups.rows import Connection, NoClusterError
from retinue.manager.store.migrations import SchemaTooNewError, SchemaTooOldError, configuration, synchronous_engine
from tests.integration.manager.store.revisions import add_later_revision, make_former

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from retinue.manager.store.postgres.database import Database
    from tests.support.databases import Postgres

pytestmark = pytest.mark.asyncio(loop_scope="session")

_TEXT = sql.SQL("SELECT t::text FROM {} t")


@pytest_asyncio.fixture(loop_scope="session")
async def empty_url(postgres: Postgres) -> AsyncIterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name}")
    try:
        yield postgres.url_of(name)
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def back_up(url: str, file: Path) -> None:
    with writing(file) as writer, psycopg.connect(url) as connection:
        writer.add_file("ca.key", b"key")
        writer.finish(rows.copy_out(connection, writer))


def bring_back(url: str, archive: Archive, *, replace: bool = False) -> str:
    engine = synchronous_engine(url)
    try:
        return restore(engine, archive, replace=replace)
    finally:
        engine.dispose()


def everything(url: str) -> dict[str, list[str]]:
    with psycopg.connect(url) as connection:
        return {
            table: sorted(row[0] for row in connection.execute(_TEXT.format(sql.Identifier(table))))
            for table in rows.tables_of(connection)
            if table != "cluster"
        }


async def fill(database: Database) -> None:
    async with database.transaction() as tx:
        await accounts.create_user(tx, "ada", "USER", {})
        await accounts.create_token(tx, "ada", bytes(range(32)), description='a\t"b"\n\\N ü', ttl=None)
        await accounts.set_membership(tx, "ada", "default", "MEMBER")
        await tx.execute(audit.recording_command("create-admin", "user", "root"))
        await tx.execute(
            text("""
                INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture, software_version,
                    underlay_address, underlay_mtu, boot_id, version, capacity)
                VALUES ('n1', 'default', 'ALIVE', FALSE, FALSE, 'x:1', '', '', '', '', 0, '', 1, '{"cpu": 4000}')
            """)
        )
        await tx.execute(
            text(
                "INSERT INTO orphan (agent_id, kernel_id, epoch, state) VALUES ('n1', gen_random_uuid(), 1, 'RUNNING')"
            )
        )


async def test_what_was_backed_up_comes_back(
    database: Database, database_url: str, empty_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    await fill(database)
    before = await asyncio.to_thread(everything, database_url)
    await asyncio.to_thread(back_up, database_url, file)
    assert file.stat().st_mode & 0o777 == 0o600
    with opened(file) as archive:
        assert archive.read_file("ca.key") == b"key"
        assert archive.manifest.rows > 0
        incarnation = await asyncio.to_thread(bring_back, empty_url, archive)
    after = await asyncio.to_thread(everything, empty_url)
    # Agents say again what they run.
    assert before.pop("orphan")
    assert not after.pop("orphan")
    # Records are brought back, and one more is of this.
    records = before.pop("audit_record")
    (restored,) = set(after.pop("audit_record")) ^ set(records)
    assert len(records) == 1
    assert f"retinue-manager admin restore,cluster,{archive.manifest.cluster_id}" in restored.replace('"', "")
    assert after == before
    with psycopg.connect(empty_url) as connection:
        assert violated_invariants(connection) == []
        found = connection.execute(
            "SELECT cluster_id::text, incarnation::text, restore_time IS NOT NULL FROM cluster"
        ).fetchone()
        assert found == (archive.manifest.cluster_id, incarnation, True)
        assert incarnation != archive.manifest.incarnation
        # Triggers work again: the capacity of a group follows its agents.
        connection.execute("UPDATE agent SET capacity = '{\"cpu\": 5000}' WHERE id = 'n1'")
        capacity = connection.execute("SELECT capacity->>'cpu' FROM resource_group WHERE name = 'default'").fetchone()
        assert capacity == ("5000",)


async def test_all_rows_are_of_one_moment(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database)
    before = await asyncio.to_thread(everything, database_url)
    columns_of, tables = rows._columns, list[str]()  # noqa: SLF001  # asked before each table

    def columns(connection: Connection, table: str) -> list[str]:
        # Others write before every table is read.
        tables.append(table)
        with psycopg.connect(database_url) as other:
            other.execute("INSERT INTO project (name) VALUES (%s)", (f"p{len(tables)}",))
            other.execute("INSERT INTO user_account (name, role) VALUES (%s, 'USER')", (f"u{len(tables)}",))
        return columns_of(connection, table)

    monkeypatch.setattr(rows, "_columns", columns)
    await asyncio.to_thread(back_up, database_url, tmp_path / "backup")
    assert {"project", "user_account"} <= set(tables)
    with opened(tmp_path / "backup") as archive:
        found = {name: table.rows for name, table in archive.manifest.tables.items() if name != "cluster"}
    assert found == {name: len(lines) for name, lines in before.items()}


def revision_of(url: str) -> str | None:
    engine = synchronous_engine(url)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


async def test_a_backup_of_a_former_version_is_brought_to_this_one(
    database: Database, database_url: str, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = await asyncio.to_thread(revision_of, database_url)
    assert former is not None
    await asyncio.to_thread(back_up, database_url, tmp_path / "backup")
    with opened(tmp_path / "backup") as archive:
        # One of a version to come is refused.
        future = Archive(None, replace(archive.manifest, schema="9999_later"))  # type: ignore[arg-type]  # not read
        with pytest.raises(SchemaTooNewError):
            await asyncio.to_thread(bring_back, empty_url, future)
        add_later_revision(monkeypatch, tmp_path)
        assert archive.manifest.schema == former
        await asyncio.to_thread(bring_back, empty_url, archive)
    assert await asyncio.to_thread(revision_of, empty_url) == "9999_later"
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)


async def test_a_backup_of_before_the_first_release_is_brought_to_this_one(
    postgres: Postgres, empty_url: str, tmp_path: Path
) -> None:
    head = ScriptDirectory.from_config(configuration()).get_current_head()
    name = f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name}")
    try:
        url = postgres.url_of(name)
        await asyncio.to_thread(make_former, url)
        await asyncio.to_thread(back_up, url, tmp_path / "backup")
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
    with opened(tmp_path / "backup") as archive:
        assert archive.manifest.schema == "0055"
        older = Archive(None, replace(archive.manifest, schema="0054"))  # type: ignore[arg-type]  # not read
        with pytest.raises(SchemaTooOldError, match="takes 0055 only"):
            await asyncio.to_thread(bring_back, empty_url, older)
        await asyncio.to_thread(bring_back, empty_url, archive)
    assert await asyncio.to_thread(revision_of, empty_url) == head
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT name, number, spec_bytes > 0 FROM session").fetchall() == [("old", 1, True)]
        assert violated_invariants(connection) == []


async def test_a_table_that_the_schema_lacks_is_no_small_matter(
    database: Database, database_url: str, empty_url: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(back_up, database_url, tmp_path / "backup")
    with opened(tmp_path / "backup") as archive:
        tables = {**archive.manifest.tables, "undeclared": archive.manifest.tables["project"]}
        odd = Archive(None, replace(archive.manifest, tables=tables))  # type: ignore[arg-type]  # not read
        with pytest.raises(ValueError, match="the schema has no table undeclared"):
            await asyncio.to_thread(bring_back, empty_url, odd)


async def test_rows_that_do_not_agree_are_found(database: Database, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert violated_invariants(connection) == []
        connection.execute("UPDATE journal_head SET revision = revision + 1")
        assert violated_invariants(connection) == ["the journal has gaps"]
        connection.rollback()


async def test_an_incarnation_is_not_begun_while_a_manager_runs(database: Database, database_url: str) -> None:
    async with database.transaction() as tx:
        before = (await tx.execute(text("SELECT incarnation::text FROM cluster"))).scalar_one()
    engine = synchronous_engine(database_url)
    try:
        with pytest.raises(OccupiedError, match="stop every manager first"):
            await asyncio.to_thread(begin_incarnation, engine)
    finally:
        engine.dispose()
    async with database.transaction() as tx:
        assert (await tx.execute(text("SELECT incarnation::text FROM cluster"))).scalar_one() == before


async def test_numbers_continue_after_those_that_were_given(
    database: Database, database_url: str, empty_url: str, tmp_path: Path
) -> None:
    sequences = "SELECT pg_get_serial_sequence('network', 'id'), pg_get_serial_sequence('session', 'number')"
    async with database.transaction() as tx:
        for number in range(3):
            await tx.execute(
                text("INSERT INTO network (vni, subnet, mtu) VALUES (0, CAST(:subnet AS cidr), 1500)"),
                {"subnet": f"10.128.{number}.0/24"},
            )
    await asyncio.to_thread(back_up, database_url, tmp_path / "backup")
    with opened(tmp_path / "backup") as archive:
        await asyncio.to_thread(bring_back, empty_url, archive)
    with psycopg.connect(empty_url) as connection:
        names = connection.execute(sequences).fetchone()
        assert names is not None
        assert [connection.execute("SELECT nextval(%s)", (name,)).fetchone() for name in names] == [(4,), (1,)]


async def test_only_the_same_cluster_is_replaced_and_only_when_nothing_uses_it(
    database: Database, database_url: str, postgres: Postgres, empty_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    await asyncio.to_thread(back_up, database_url, file)
    await fill(database)
    with opened(file) as archive:
        with pytest.raises(OccupiedError, match="stop every manager first"):
            await asyncio.to_thread(bring_back, database_url, archive, replace=True)
        await database.dispose()
        with pytest.raises(OccupiedError, match="--replace"):
            await asyncio.to_thread(bring_back, database_url, archive)
        await asyncio.to_thread(bring_back, database_url, archive, replace=True)
        async with database.transaction() as tx:
            assert await accounts.get_user(tx, "ada") is None
            await tx.execute(text("UPDATE cluster SET cluster_id = gen_random_uuid()"))
        await database.dispose()
        with pytest.raises(OccupiedError, match="give an empty one"):
            await asyncio.to_thread(bring_back, database_url, archive, replace=True)
        with psycopg.connect(empty_url) as connection:
            connection.execute("CREATE TABLE theirs (x int)")
        with pytest.raises(OccupiedError, match="something else"):
            await asyncio.to_thread(bring_back, empty_url, archive, replace=True)


async def test_a_restore_that_fails_leaves_the_database_as_it_was(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup"
    await asyncio.to_thread(back_up, database_url, file)
    await fill(database)
    await database.dispose()
    before = await asyncio.to_thread(everything, database_url)

    def fail(connection: Connection, table: str) -> None:
        if table == "session":
            raise RuntimeError("the disk is full")

    monkeypatch.setattr(rows, "_set_sequences", fail)
    with opened(file) as archive, pytest.raises(RuntimeError):
        await asyncio.to_thread(bring_back, database_url, archive, replace=True)
    assert await asyncio.to_thread(everything, database_url) == before


async def test_a_damaged_file_is_found_out(database: Database, database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    await asyncio.to_thread(back_up, database_url, file)
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.compress_size)
    # Among its data, as these are longer than what is before them.
    place = largest.header_offset + largest.compress_size
    changed = content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
    for damaged in (b"", b"no archive", content[: len(content) // 2], changed):
        file.write_bytes(damaged)
        with pytest.raises(BadBackupError), opened(file):
            pass
    file.write_bytes(content)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", '{"format": 99}')
    with pytest.raises(BadBackupError, match="not known to this version"), opened(file):
        pass


async def test_an_archive_that_was_changed_is_found_out(database: Database, database_url: str, tmp_path: Path) -> None:
    """By the manifest: the archive itself is sound."""
    file, changed = tmp_path / "backup", tmp_path / "changed"
    await asyncio.to_thread(back_up, database_url, file)
    for odd in ("tables/project", "authority/ca.key"):
        changes: tuple[Callable[[bytes], bytes | None], ...] = (
            lambda content: content[:-1] + b"x",
            lambda content: content + b"x",
            lambda _: None,
        )
        for change in changes:
            with zipfile.ZipFile(file) as source, zipfile.ZipFile(changed, "w") as target:
                for name in source.namelist():
                    content = change(source.read(name)) if name == odd else source.read(name)
                    if content is not None:
                        target.writestr(name, content)
            with pytest.raises(BadBackupError, match=odd), opened(changed):
                pass


async def test_nothing_is_left_of_a_backup_that_failed(empty_url: str, tmp_path: Path) -> None:
    with pytest.raises(NoClusterError):
        await asyncio.to_thread(back_up, empty_url, tmp_path / "backup")
    assert os.listdir(tmp_path) == []


async def test_another_incarnation_can_be_begun_by_hand(database: Database, database_url: str) -> None:
    await database.dispose()
    engine = synchronous_engine(database_url)
    try:
        first = await asyncio.to_thread(begin_incarnation, engine)
        second = await asyncio.to_thread(begin_incarnation, engine)
    finally:
        engine.dispose()
    assert first != second
