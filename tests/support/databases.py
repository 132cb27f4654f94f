"""Databases for tests: one server for all of them, and a database with the schema in it for each."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

TEMPLATE = "template_migrated"
# Each test makes a database: on disks of some machines that takes longer than the test.
_MEMORY = Path("/dev/shm")  # noqa: S108  # what is made there has a name of its own
_ENOUGH_MEMORY = 2 << 30


@contextlib.contextmanager
def passable_directory() -> Iterator[Path]:
    """A directory that the database's user can pass through, unlike those of pytest; in memory if there is room."""
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ENOUGH_MEMORY
    directory = Path(tempfile.mkdtemp(prefix="rt-test-", dir=_MEMORY if in_memory else None))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server on which databases are made."""

    url: str

    def url_of(self, name: str) -> str:
        return self.url.replace("/retinue?", f"/{name}?")

    async def execute(self, statement: str) -> None:
        connection = await psycopg.AsyncConnection.connect(self.url_of("postgres"), autocommit=True)
        try:
            await connection.execute(statement.encode())
        finally:
            await connection.close()


@contextlib.asynccontextmanager
async def fresh_database(postgres: Postgres) -> AsyncIterator[str]:
    """The URL of a database of its own with the schema in it."""
    name = f"test_{uuid.uuid4().hex}"
    # Half the work of the other way, which logs every page: nothing here has to outlast a crash.
    await postgres.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    try:
        yield postgres.url_of(name)
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
