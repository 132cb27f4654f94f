"""Filters of sessions: which fields they may compare, and values as the store has them."""

from __future__ import annotations

from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.server.filters import Term, parse_filter
from retinue.manager.store.sessions.lookup import as_number

_FIXED = frozenset({"id", "number", "name", "project", "owner", "type", "resource_group"})
_CHANGING = frozenset({"state", "result"})
_ENUM_PREFIXES = {"state": "SESSION_STATE_", "type": "SESSION_TYPE_", "result": "SESSION_RESULT_"}


def session_terms(text: str, *, fixed: bool = False) -> list[Term]:
    """Returns the terms of a filter without the prefixes of enums; with `fixed`,
    fields that change in a session's life are refused.

    Raises InvalidRequest.
    """
    terms = [
        (field, operator, value.removeprefix(_ENUM_PREFIXES.get(field, "")))
        for field, operator, value in parse_filter(text, _FIXED if fixed else _FIXED | _CHANGING, prefixes=("labels.",))
    ]
    if wrong := [value for field, _, value in terms if field == "number" and as_number(value) is None]:
        raise InvalidRequest([("filter", f"{wrong[0][:64]!r} is not the number of a session, such as 12")])
    return terms
