"""A data directory, a database and a certificate authority that do not belong together are refused,
and no command makes another.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.installation import (
    BusyError,
    MismatchError,
    alone,
    claim,
    existing_database,
    read_cluster_id,
    read_seal_key,
    refuse_other_authority,
    refuse_second_cluster,
    write_cluster_id,
)
from retinue.manager.store.accounts import accounts
from retinue.manager.store.migrations import NoDatabaseError, SchemaTooOldError
from tests.integration.manager.manager_commands import command, refusals
from tests.support.databases import Postgres, passable_directory

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = b"k" * 32


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def made(parent: Path, name: str) -> Path:
    directory = parent / name
    directory.mkdir()
    return directory


async def test_a_second_manager_makes_no_second_authority(database: Database, tmp_path: Path) -> None:
    first, second = made(tmp_path, "first"), made(tmp_path, "second")
    authority = await claim(database, first, now)
    assert (await claim(database, first, now)).fingerprint == authority.fingerprint
    with pytest.raises(MismatchError, match=r"copy ca\.key and ca\.pem"):
        await claim(database, second, now)
    assert list(second.iterdir()) == []
    for name in ("ca.key", "ca.pem"):
        shutil.copy(first / name, second / name)
    assert (await claim(database, second, now)).fingerprint == authority.fingerprint
    assert read_cluster_id(second) == read_cluster_id(first) != ""


async def test_an_authority_of_another_cluster_is_refused(database: Database, tmp_path: Path) -> None:
    await claim(database, made(tmp_path, "first"), now)
    stranger = made(tmp_path, "stranger")
    shutil.copytree(tmp_path / "first", stranger, dirs_exist_ok=True)
    write_cluster_id(stranger, str(uuid.uuid4()))
    with pytest.raises(MismatchError, match="belongs to cluster"):
        await claim(database, stranger, now)
    (stranger / "cluster").unlink()
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE cluster SET ca_fingerprint = 'another'"))
    with pytest.raises(MismatchError, match="is not that of cluster"):
        await claim(database, stranger, now)


async def test_commands_refuse_the_database_of_another_cluster(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    await claim(database, tmp_path, now)
    async with existing_database(tmp_path, database_url) as found, found.transaction() as tx:
        assert (await tx.execute(text("SELECT count(*) FROM cluster"))).scalar_one() == 1
    write_cluster_id(tmp_path, str(uuid.uuid4()))
    with pytest.raises(MismatchError, match="of the same cluster"):
        async with existing_database(tmp_path, database_url):
            pass


@pytest.mark.parametrize("content", ["", "not-an-id\n", "\ufffd"])
async def test_a_damaged_id_of_a_cluster_is_not_taken_for_none(
    database: Database, database_url: str, tmp_path: Path, content: str
) -> None:
    (tmp_path / "cluster").write_text(content)
    with pytest.raises(MismatchError, match="does not hold the id of a cluster"):
        read_cluster_id(tmp_path)
    with pytest.raises(MismatchError, match="does not hold the id of a cluster"):
        await claim(database, tmp_path, now)
    with pytest.raises(MismatchError, match="does not hold the id of a cluster"):
        await refuse_second_cluster(tmp_path, database_url)
    assert not (tmp_path / "ca.key").exists()


async def test_a_backup_of_another_authority_is_refused(database: Database, tmp_path: Path) -> None:
    refuse_other_authority(tmp_path, "any")
    authority = await claim(database, tmp_path, now)
    for same in ("", authority.fingerprint):
        refuse_other_authority(tmp_path, same)
    with pytest.raises(MismatchError, match="not that of the backup"):
        refuse_other_authority(tmp_path, "0" * 64)


async def test_managers_that_start_together_agree_on_one_authority(database: Database, tmp_path: Path) -> None:
    directories = [made(tmp_path, f"m{number}") for number in range(4)]
    authorities = await asyncio.gather(*(claim(database, directory, now, KEY) for directory in directories))
    assert len({authority.fingerprint for authority in authorities}) == 1
    assert len({(directory / "ca.key").read_bytes() for directory in directories}) == 1


async def test_one_manager_at_a_time_uses_an_embedded_database(tmp_path: Path) -> None:
    with alone(tmp_path):
        with pytest.raises(BusyError, match="another manager runs on"), alone(tmp_path):
            pass
        with pytest.raises(BusyError), alone(tmp_path):
            pass
    with alone(tmp_path):
        pass


async def test_a_sealed_authority_is_taken_from_the_database(database: Database, tmp_path: Path) -> None:
    first, second, third = (made(tmp_path, name) for name in ("first", "second", "third"))
    # It was made before there was a key.
    await claim(database, first, now)
    authority = await claim(database, first, now, KEY)
    with pytest.raises(MismatchError, match="give the key that it is sealed with"):
        await claim(database, second, now)
    with pytest.raises(MismatchError, match="sealed with another key"):
        await claim(database, second, now, b"x" * 32)
    assert (await claim(database, second, now, KEY)).key_pem == authority.key_pem
    assert (second / "ca.key").stat().st_mode & 0o777 == 0o600
    async with database.transaction() as tx:
        sealed = (await tx.execute(text("SELECT ca_sealed FROM cluster"))).scalar_one()
    assert authority.key_pem not in bytes(sealed)
    key_file = tmp_path / "key"
    key_file.write_text("short")
    with pytest.raises(ValueError, match="at least 32 bytes"):
        read_seal_key(key_file)
    assert not list(third.iterdir())


async def test_an_authority_that_the_key_does_not_open_is_sealed_again(database: Database, tmp_path: Path) -> None:
    first, second = (made(tmp_path, name) for name in ("first", "second"))
    authority = await claim(database, first, now, KEY)
    async with database.transaction() as tx:
        # As another version sealed it.
        await tx.execute(text("UPDATE cluster SET ca_sealed = 'x'"))
    with pytest.raises(MismatchError, match="sealed with another key"):
        await claim(database, second, now, KEY)
    await claim(database, first, now, KEY)
    assert (await claim(database, second, now, KEY)).key_pem == authority.key_pem


async def test_no_second_cluster_is_made_for_a_data_directory(postgres: Postgres, tmp_path: Path) -> None:
    name = f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name}")
    try:
        await refuse_second_cluster(tmp_path, "")
        await refuse_second_cluster(tmp_path, postgres.url_of(name))
        write_cluster_id(tmp_path, str(uuid.uuid4()))
        with pytest.raises(MismatchError, match="no embedded database"):
            await refuse_second_cluster(tmp_path, "")
        with pytest.raises(MismatchError, match="the database is empty"):
            await refuse_second_cluster(tmp_path, postgres.url_of(name))
        with pytest.raises(NoDatabaseError, match="holds no cluster"):
            async with existing_database(tmp_path, postgres.url_of(name)):
                pass
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
    with pytest.raises(NoDatabaseError, match="give --database-url"):
        async with existing_database(tmp_path, ""):
            pass


async def test_an_older_schema_is_left_to_a_manager(database: Database, database_url: str, tmp_path: Path) -> None:
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE alembic_version SET version_num = '0055'"))
    with pytest.raises(SchemaTooOldError, match="start a manager of this version first"):
        async with existing_database(tmp_path, database_url):
            pass


async def test_no_command_makes_a_database() -> None:
    with passable_directory() as parent:
        directory = str(parent / "not-there")
        commands = (("create-admin", "root"), ("admin", "backup", "b"))
        for code, said in await refusals(*((*arguments, "--data-dir", directory) for arguments in commands)):
            assert code == 1
            assert "is not the data directory of a manager" in said
        assert list(parent.iterdir()) == []


async def test_the_first_administrator_is_a_member_of_the_default_project(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    code, _, errors = await command("create-admin", "root", "--data-dir", str(tmp_path), "--database-url", database_url)
    assert code == 0, errors
    async with database.transaction() as tx:
        rows = await tx.execute(text("SELECT project, role FROM membership WHERE user_name = 'root'"))
        assert rows.all() == [("default", "ADMIN")]
        assert await accounts.get_user(tx, "root") is not None
