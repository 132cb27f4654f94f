"""Parses the filter language of lists: terms `field = "value"` or `field != "value"`, joined by `AND`.

It is read into plain terms; no text of a caller becomes a part of a statement.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retinue.manager.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# Field, `=` or `!=`, and value.
Term = tuple[str, str, str]

MAX_LENGTH = 2048
MAX_TERMS = 20
_LONGEST_FIELD = 160
# No alternatives that could be tried in more than one way: the time is linear in the length.
_TERM = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_./-]*)\s*(!=|=)\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)
_AND = re.compile(r"\s+AND(?=\s)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def parse_filter(text: str, fields: Collection[str], *, prefixes: Sequence[str] = ()) -> list[Term]:
    """Returns the terms of a filter; the empty filter has none.

    `fields` may be compared, and whatever follows one of `prefixes`. In a value, a backslash takes the next character
    as it is. Raises InvalidRequest.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidRequest([("filter", f"must be at most {MAX_LENGTH} characters")])
    terms: list[Term] = []
    position = 0
    if not text.strip():
        return terms
    while True:
        match = _TERM.match(text, position)
        if match is None:
            raise InvalidRequest([("filter", f'expected field = "value" or field != "value" at character {position}')])
        field, operator, value = match[1], match[2], _ESCAPE.sub(r"\1", match[3])
        if not _known(field, fields, prefixes):
            raise InvalidRequest([("filter", f"unknown field {field[:64]!r}; known are {_listed(fields, prefixes)}")])
        if "\0" in value:
            raise InvalidRequest([("filter", "a value must not hold NUL")])
        terms.append((field, operator, value))
        if not text[match.end() :].strip():
            break
        conjunction = _AND.match(text, match.end())
        if conjunction is None:
            raise InvalidRequest([("filter", f"expected AND or the end at character {match.end()}")])
        position = conjunction.end()
    if len(terms) > MAX_TERMS:
        raise InvalidRequest([("filter", f"must be at most {MAX_TERMS} terms")])
    return terms


def _known(field: str, fields: Collection[str], prefixes: Sequence[str]) -> bool:
    if field in fields:
        return True
    return len(field) <= _LONGEST_FIELD and any(field.startswith(prefix) and field != prefix for prefix in prefixes)


def _listed(fields: Collection[str], prefixes: Sequence[str]) -> str:
    return ", ".join([*sorted(fields), *(f"{prefix}KEY" for prefix in prefixes)])
