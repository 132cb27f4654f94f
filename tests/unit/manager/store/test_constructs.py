"""Statements that are made of the tables, as the driver takes them."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, Text, select

from retinue.manager.store.placement.shares import Difference
from retinue.manager.store.postgres.constructs import Construct, columns_of, lists, one_of, table_of, word
from retinue.manager.store.tables import Claim, DrfShare

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
