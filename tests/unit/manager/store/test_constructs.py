"""Statements that are made of the tables, as the driver takes them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import BigInteger, Float, Text, select
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.sql import Delete, Insert, Select, Update
from sqlalchemy.sql.dml import UpdateBase

from retinue.manager import store
from retinue.manager.store.placement.shares import Difference
from retinue.manager.store.postgres.constructs import (
    Construct,
    columns_of,
    json_of,
    json_parameter,
    lists,
    one_of,
    parameter,
    span,
    table_of,
    word,
)
from retinue.manager.store.tables import Claim, DrfShare

if TYPE_CHECKING:
    from collections.abc import Iterator

_claim = table_of(Claim)


def test_words_are_part_of_the_text_and_numbers_are_parameters() -> None:
    made = Construct(select(_claim.c.slot).where(_claim.c.owner == word("A_WORD"), _claim.c.amount > 3))
    assert "claim.owner = 'A_WORD'" in made.sql
    (constant,) = made.parameters({})
    assert f"claim.amount > %({constant})s::BIGINT" in made.sql
    assert made.parameters({"other": 1}) == {constant: 3, "other": 1}


@pytest.mark.parametrize("value", ["it's", "a b", "--", "lower", "A\n"])
def test_a_word_is_one_of_ours(value: str) -> None:
    with pytest.raises(ValueError, match="^" + value[:1]):
        word(value)


def test_rows_come_as_lists_that_have_the_names_of_their_columns() -> None:
    given = lists("given", owner=Text(), amount=BigInteger())
    made = Construct(select(given.c.owner).where(given.c.owner == one_of("names")))
    assert "unnest(CAST(%(owner)s AS TEXT[]), CAST(%(amount)s AS BIGINT[])) AS given(owner, amount)" in made.sql
    assert "given.owner = any(%(names)s::TEXT[])" in made.sql
    assert not made.parameters({})


def test_text_has_its_parameters_named() -> None:
    made = Construct("SELECT 1 WHERE :group = ANY(CAST(:names AS text[]))")
    assert made.sql == "SELECT 1 WHERE %(group)s = ANY(CAST(%(names)s AS text[]))"
    given = {"group": "a", "names": ["a"]}
    assert made.parameters(given) is given


def test_a_record_names_its_columns_and_no_others() -> None:
    assert [column.name for column in columns_of(Claim, Difference)] == ["resource_group", "owner", "slot", "amount"]
    with pytest.raises(KeyError, match="slot"):
        columns_of(DrfShare, Difference)


def test_spans_are_of_seconds() -> None:
    assert Construct(select(span(parameter("age", Float())))).sql.startswith("SELECT %(age)s * interval '1 second'")


def test_documents_are_written_in_one_way() -> None:
    made = Construct(select(json_of(("a", 1)), json_parameter("other")))
    assert made.sql.startswith("SELECT CAST(%(param_1)s::VARCHAR AS JSONB)")
    assert "CAST(%(other)s::VARCHAR AS JSONB)" in made.sql
    assert made.parameters({"other": "{}"}) == {"param_1": '["a",1]', "other": "{}"}


def _constants() -> Iterator[tuple[str, object]]:
    for module in pkgutil.walk_packages(store.__path__, f"{store.__name__}."):
        if ".migrations" not in module.name:
            for name, value in vars(importlib.import_module(module.name)).items():
                yield f"{module.name}.{name}", value


def test_every_statement_that_is_a_constant_can_be_compiled() -> None:
    compiled = 0
    for name, value in _constants():
        if isinstance(value, Construct):
            assert value.sql, name
            compiled += 1
        elif isinstance(value, Delete | Insert | Select | Update):
            assert str(value.compile(dialect=PGDialectAsync_psycopg())), name  # type: ignore[no-untyped-call]
            compiled += 1
    assert compiled > 50


def test_no_parameter_has_the_name_of_a_column_that_is_written() -> None:
    # With such a parameter the library writes that column, too.
    looked_at = 0
    for name, value in _constants():
        if isinstance(value, UpdateBase):
            compiled: Any = value.compile(dialect=PGDialectAsync_psycopg())  # type: ignore[no-untyped-call]
            asked = {key for key, bind in compiled.binds.items() if bind.required}
            assert not asked & {column.key for column in value.table.columns}, name
            looked_at += 1
    assert looked_at > 5
