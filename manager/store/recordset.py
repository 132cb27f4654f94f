"""Rows as one parameter: sets of rows travel to the database as JSON and are unfolded there by `jsonb_to_recordset`."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any


def recordset(rows: Iterable[Mapping[str, Any]]) -> str:
    """The text for a parameter used as `jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(column type, …)`."""
    return json.dumps(list(rows), default=_plain, separators=(",", ":"))


def _plain(value: object) -> str:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no place in a row")
