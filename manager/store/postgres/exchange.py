"""Statements that are sent to the server at once, with the beginning of their transaction and its end: one round trip.

The driver's own pipelines wait for the server at their beginning, at each statement, at a commit and at their end. What
that takes on the event loop is most of what a short call costs; so statements are given to libpq here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg import errors
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.waiting import Ready, Wait

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from retinue.manager.store.postgres.connections import Driver
    from retinue.manager.store.postgres.recordset import Row

# A statement that a connection has executed so often is prepared, as are so many at most.
_OFTEN, _MAX_PREPARED = 3, 200
_MAX_COUNTED = 1000
_OUT_OF_STEP = "the server's answers do not match what it was sent"

# The text, and the types of its parameters: the same text with others is another statement to the server.
_Key = tuple[bytes, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Command:
    """A statement as libpq takes it: its text with parameters named `$1` and so on, and their values in that order."""

    sql: bytes
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Adapted:
    """A statement with its values as the server reads them."""

    key: _Key
    values: Sequence[Buffer | None] | None
    formats: Sequence[Format] | None


@dataclass(slots=True)
class _Prepared:
    """The statements that a connection has prepared, by name, and how often it has executed others."""

    names: dict[_Key, bytes] = field(default_factory=dict)
    counts: dict[_Key, int] = field(default_factory=dict)
    named: int = 0

    def is_due(self, key: _Key) -> bool:
        """Counts an execution; returns whether to prepare the statement with it."""
        if len(self.names) >= _MAX_PREPARED:
            return False
        if len(self.counts) >= _MAX_COUNTED:
            self.counts.clear()
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key] >= _OFTEN

    def new_name(self) -> bytes:
        """Returns a name that the connection has not used: one may be taken though its statement was refused."""
        self.named += 1
        return b"retinue_%d" % self.named


_prepared: weakref.WeakKeyDictionary[Driver, _Prepared] = weakref.WeakKeyDictionary()


def exchange(
    driver: Driver, commands: Sequence[Command], *, commit: bool
) -> Generator[Wait, Ready | int | None, list[list[Row]]]:
    """Executes statements in order, in the connection's transaction, which begins with them if there is none and ends
    after them with `commit`; returns the rows of each, none for one that finds no rows. It is for the connection's
    `wait`, under its lock.

    Raises the server's error about the first that fails, as the driver's; nothing after it is executed then, and the
    transaction waits to be rolled back. A caller that is cancelled, and a connection that breaks, leave the connection
    in the middle of the exchange.
    """
    return _Exchange(driver).run(commands, commit=commit)


class _Exchange:
    def __init__(self, driver: Driver) -> None:
        self._pgconn: PGconn = driver.pgconn
        self._transformer = Transformer(driver)
        self._encoding = driver.info.encoding
        self._prepared = _prepared.get(driver) or _prepared.setdefault(driver, _Prepared())
        # What is done with the result of each command that was sent.
        self._expected: list[Callable[[PGresult], None]] = []
        self._rows: list[list[Row]] = []

    def run(self, commands: Sequence[Command], *, commit: bool) -> Generator[Wait, Ready | int | None, list[list[Row]]]:
        pgconn = self._pgconn
        # Before anything is sent: what a value is refused for leaves the connection as it is.
        adapted = [self._adapted(command) for command in commands]
        begins = pgconn.transaction_status == TransactionStatus.IDLE
        pgconn.enter_pipeline_mode()
        if begins:
            self._send(b"BEGIN")
        # Prepared by this exchange: known to the server once it has said so.
        preparing: dict[_Key, bytes] = {}
        for each in adapted:
            self._send_adapted(each, preparing)
        if commit:
            self._send(b"COMMIT")
        pgconn.pipeline_sync()
        while pgconn.flush():
            # A server whose answers are not received may take in no more.
            if (yield Wait.RW) != Ready.W:
                pgconn.consume_input()
        failure: errors.Error | None = None
        for take in self._expected:
            result = yield from self._next()
            if result is None or (yield from self._next()) is not None:
                raise errors.InternalError(_OUT_OF_STEP)
            try:
                take(result)
            except errors.Error as error:
                failure = failure or error
        synced = yield from self._next()
        if synced is None or synced.status != ExecStatus.PIPELINE_SYNC:
            raise errors.InternalError(_OUT_OF_STEP)
        pgconn.exit_pipeline_mode()
        if failure is not None:
            raise failure
        return self._rows

    def _next(self) -> Generator[Wait, Ready | int | None, PGresult | None]:
        """Receives a result; None at the end of those of a command."""
        while self._pgconn.is_busy():
            yield Wait.R
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _adapted(self, command: Command) -> _Adapted:
        if not command.values:
            return _Adapted((command.sql, ()), None, None)
        values = self._transformer.dump_sequence(command.values, [PyFormat.AUTO] * len(command.values))
        return _Adapted((command.sql, self._transformer.types or ()), values, self._transformer.formats)

    def _send(self, sql: bytes) -> None:
        self._pgconn.send_query_params(sql, None)
        self._expected.append(self._check)

    def _send_adapted(self, adapted: _Adapted, preparing: dict[_Key, bytes]) -> None:
        sql, types = key = adapted.key
        name = self._prepared.names.get(key) or preparing.get(key)
        if name is None and self._prepared.is_due(key):
            name = preparing[key] = self._prepared.new_name()
            self._pgconn.send_prepare(name, sql, types)
            self._expected.append(partial(self._take_prepared, key, name))
        if name is None:
            self._pgconn.send_query_params(sql, adapted.values, types, adapted.formats)
        else:
            self._pgconn.send_query_prepared(name, adapted.values, adapted.formats)
        self._expected.append(self._take_rows)

    def _check(self, result: PGresult) -> None:
        if result.status in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY}:
            return
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result, encoding=self._encoding)
        if result.status == ExecStatus.PIPELINE_ABORTED:
            raise errors.PipelineAborted("an earlier statement has failed")
        raise errors.InternalError(f"unexpected result of a statement: {ExecStatus(result.status).name}")

    def _take_prepared(self, key: _Key, name: bytes, result: PGresult) -> None:
        self._check(result)
        self._prepared.names[key] = name
        self._prepared.counts.pop(key, None)

    def _take_rows(self, result: PGresult) -> None:
        self._check(result)
        if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
            self._rows.append([])
            return
        transformer, encoding = self._transformer, self._encoding
        names = [(result.fname(column) or b"").decode(encoding) for column in range(result.nfields)]
        transformer.set_pgresult(result)

        def row(values: Sequence[Any]) -> Mapping[str, Any]:
            return dict(zip(names, values, strict=True))

        self._rows.append(transformer.load_rows(0, result.ntuples, row))
