"""Sets of rows in both directions: as one JSON parameter, unfolded by `jsonb_to_recordset`,
and as mappings or records from a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import orjson

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy import Result

Row: TypeAlias = Mapping[str, Any]
_Record = TypeVar("_Record", bound="DataclassInstance")


def recordset(rows: Iterable[object]) -> str:
    """Returns the text for a parameter used as `jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(column type, …)`. Rows
    are mappings, whose keys may be words of an enumeration, or dataclasses.
    """
    return json_text(list(rows))


def json_text(value: object) -> str:
    """Returns a value as JSON for one column, in the way of `recordset`."""
    return orjson.dumps(value, _plain, orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()


def fetched(result: Result[Any]) -> list[Row]:
    """Returns all rows of a result, by column name."""
    return [dict(row._mapping) for row in result]  # noqa: SLF001  # public in spite of its name: documented as the row's mapping


def record_of(kind: type[_Record], row: object) -> _Record:
    """Returns the columns of a row that a record has."""
    return kind(**{field.name: getattr(row, field.name) for field in fields(kind)})


def _plain(value: object) -> object:
    """Returns what only the tuples and numbers themselves are written as, and not those of other types."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no place in a row")
