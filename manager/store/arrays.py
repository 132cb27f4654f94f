"""Lists as parameters of statements, written whole.

The driver asks of each item by a regular expression whether it has to be quoted: for thousands of rows that takes longer than their
statement takes in the database.
"""

from __future__ import annotations

import uuid
from typing import Any

from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.types.array import ListDumper


class FlatListDumper(ListDumper):
    """Dumps lists of UUIDs, of integers and of strings at once, all others as the driver does."""

    def dump(self, obj: list[Any]) -> Buffer | None:
        """Returns the list as PostgreSQL reads arrays."""
        types = set(map(type, obj))
        if types == {uuid.UUID}:
            return f"{{{','.join([item.hex for item in obj])}}}".encode()
        if types == {int}:
            return f"{{{','.join(map(str, obj))}}}".encode()
        if types == {str}:
            joined = '","'.join(obj)
            # What has to be escaped, or cannot be sent, is for the driver to say; two quotes for each place between items are ours.
            if "\\" not in joined and "\0" not in joined and joined.count('"') == 2 * (len(obj) - 1):
                return f'{{"{joined}"}}'.encode(self._tx.encoding)
        return super().dump(obj)


def register(adapters: AdaptersMap) -> None:
    """Has a connection write lists this way."""
    adapters.register_dumper(list, FlatListDumper)
