"""Lists given to the database come back from it as they were, whatever is in them, and by the way meant for them."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from psycopg.types.array import ListDumper
from sqlalchemy import text

from retinue.manager.store.postgres.database import Database, Query

CHARACTERS = [*"ab ,{}\"\\'%:NULnul\t\n\r", "é", "\u2003", "\u3000", "😀", "\x01", '","', "\\\\"]
WORDS = ["", "NULL", "null", "{}", "{a,b}", '"', '""', '","', "\\", "a b", "a,b", "a\nb", "\u2003", ":name", "%s"]


def words(random: random.Random) -> list[str]:
    return ["".join(random.choices(CHARACTERS, k=random.randrange(5))) for _ in range(random.randrange(1, 8))]


LISTS: list[tuple[str, list[Any]]] = [
    ("text", WORDS),
    *(("text", [word]) for word in WORDS),
    *(("text", words(random.Random(seed))) for seed in range(200)),
    ("text", []),
    ("text", ["a", None]),
    ("uuid", [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID("0e984725-c51c-4bf4-9960-e1c80e27aba0")]),
    ("uuid", []),
    ("uuid", [None, uuid.UUID(int=1)]),
    ("int", [0, -1, 2**31 - 1, -(2**31)]),
    ("bigint", [2**63 - 1, -(2**63), 5]),
    ("boolean", [True, False]),
    ("float8", [0.5, -1e300]),
]


def returning(kind: str, items: list[Any]) -> Query[list[Any]]:
    sql = f"SELECT CAST(:items AS {kind}[]) AS items"
    return Query(sql, {"items": items}, read=lambda rows: list(rows[0]["items"]))


async def test_lists_come_back_as_they_were(database: Database) -> None:
    async with database.transaction() as tx:
        queries = [returning(kind, items) for kind, items in LISTS]
        answers = await tx.pipeline(*queries)
        assert [answers.of(query) for query in queries] == [items for _, items in LISTS]
        for kind, items in LISTS[:20]:
            rows = await tx.execute(text(f"SELECT CAST(:items AS {kind}[])"), {"items": items})
            assert rows.scalar_one() == items


async def test_what_cannot_be_stored_is_refused(database: Database) -> None:
    async with database.transaction() as tx:
        with pytest.raises(Exception, match="NUL"):
            await tx.pipeline(returning("text", ["a\0b"]))


async def test_lists_of_thousands_are_not_looked_at_item_by_item(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one(*_: Any) -> None:
        raise AssertionError("item by item")

    monkeypatch.setattr(ListDumper, "dump", one_by_one)
    lists: list[tuple[str, list[Any]]] = [
        ("text", ["a b", ""]),
        ("uuid", [uuid.UUID(int=7)]),
        ("int", [1, 2]),
    ]
    async with database.transaction() as tx:
        for kind, items in lists:
            query = returning(kind, items)
            assert (await tx.pipeline(query)).of(query) == items
