"""The filter language: what it reads, and what it refuses, in time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.server.filters import MAX_LENGTH, parse_filter

FIELDS = frozenset({"state", "name"})


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("   ", []),
        ('state = "RUNNING"', [("state", "=", "RUNNING")]),
        ('state!="A"  AND\tname="b"', [("state", "!=", "A"), ("name", "=", "b")]),
        (r'name = "say \"hi\" \\ AND x"', [("name", "=", r'say "hi" \ AND x')]),
        ('labels.a.b/c = "1"', [("labels.a.b/c", "=", "1")]),
        ('name = ""', [("name", "=", "")]),
    ],
)
def test_reads(text: str, terms: list[tuple[str, str, str]]) -> None:
    assert parse_filter(text, FIELDS, prefixes=("labels.",)) == terms


@pytest.mark.parametrize(
    "text",
    [
        "state",
        "state = RUNNING",
        'state = "RUNNING',
        'state > "1"',
        'state = "a" OR name = "b"',
        'state = "a" ANDname = "b"',
        'state = "a"AND name = "b"',
        'state = "a" AND',
        'other = "a"',
        'labels. = "a"',
        'name = "a\0"',
        'name = "a"; DROP TABLE session; --',
        "AND",
        " AND ".join(['name = "a"'] * 21),
        'name = "' + "a" * MAX_LENGTH + '"',
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_filter(text, FIELDS, prefixes=("labels.",))
    assert caught.value.violations[0][0] == "filter"


@pytest.mark.attack("slow-filters")
@pytest.mark.parametrize("text", ['name = "' + "\\" * 2000, "name" * 500, " " * 2040 + "x", 'name="' + '\\"' * 1000])
def test_hostile_text_is_refused_quickly(text: str) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidRequest):
        parse_filter(text, FIELDS)
    # Of processor time, which is its own whatever else the machine does.
    assert time.thread_time() - began < 0.2


@given(
    st.lists(st.tuples(st.sampled_from(sorted(FIELDS)), st.sampled_from(["=", "!="]), st.text(max_size=20)), max_size=8)
)
def test_what_is_written_is_read_back(terms: list[tuple[str, str, str]]) -> None:
    terms = [(field, operator, value.replace("\0", "")) for field, operator, value in terms]
    written = " AND ".join(
        f'{field} {operator} "{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for field, operator, value in terms
    )
    assert parse_filter(written, FIELDS) == terms
