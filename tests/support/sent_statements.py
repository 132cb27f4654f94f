"""The statements that this process sends to databases."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg

from retinue.manager.store.postgres import database
from retinue.manager.store.postgres.exchange import Command, exchange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def sent_statements() -> Iterator[list[bytes]]:
    """Yields a list of what is sent within the block: one by one, and several in one exchange."""
    sent: list[bytes] = []
    execute = psycopg.AsyncCursor.execute

    def note(statement: bytes) -> None:
        # Not what a new connection is set up with: how many of them are needed depends on the machine.
        if b"set_config" not in statement:
            sent.append(statement)

    async def executing(cursor: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        note(statement if isinstance(statement, bytes) else str(statement).encode())
        return await execute(cursor, statement, *arguments, **options)

    def exchanging(driver: Any, commands: Sequence[Command], *, commit: bool) -> Any:
        for command in commands:
            note(command.sql)
        return exchange(driver, commands, commit=commit)

    with (
        mock.patch.object(psycopg.AsyncCursor, "execute", executing),
        mock.patch.object(database, "exchange", exchanging),
    ):
        yield sent
