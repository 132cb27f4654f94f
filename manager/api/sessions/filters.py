"""Filters of sessions: which fields they may compare, and values as the store has them."""

from __future__ import annotations

from retinue.manager.server.filters import Term, parse_filter

_FIXED = frozenset({"id", "name", "project", "owner", "type", "resource_group"})
_CHANGING = frozenset({"state", "result"})
_ENUM_PREFIXES = {"state": "SESSION_STATE_", "type": "SESSION_TYPE_", "result": "SESSION_RESULT_"}


def session_terms(text: str, *, fixed: bool = False) -> list[Term]:
    """Returns the terms of a filter without the prefixes of enums; with `fixed`,
    fields that change in a session's life are refused.

    Raises InvalidRequest.
    """
    return [
        (field, operator, value.removeprefix(_ENUM_PREFIXES.get(field, "")))
        for field, operator, value in parse_filter(text, _FIXED if fixed else _FIXED | _CHANGING, prefixes=("labels.",))
    ]
