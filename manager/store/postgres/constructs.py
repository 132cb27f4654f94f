"""Statements that are made of the columns of the tables, and what they are made of beside those.

A construct is a constant of its module, and is compiled once, to the text that the driver takes: a statement in a
pipeline costs no more than one that was written as text.
"""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import (
    ARRAY,
    BindParameter,
    Column,
    ColumnElement,
    Executable,
    Float,
    Interval,
    Select,
    SQLColumnExpression,
    Table,
    Text,
    bindparam,
    column,
    extract,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg

from retinue.manager.store.postgres.exchange import Command
from retinue.manager.store.postgres.recordset import json_text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping

    from _typeshed import DataclassInstance
    from sqlalchemy.sql import ClauseElement
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.sql.elements import KeyedColumnElement
    from sqlalchemy.sql.selectable import TableValuedAlias
    from sqlalchemy.types import TypeEngine
    from sqlmodel import SQLModel

_Value = TypeVar("_Value")

_DIALECT = PGDialectAsync_psycopg()  # type: ignore[no-untyped-call]
_WORD = re.compile(r"[A-Z_]*")
# As the dialect writes parameters, and a sign of percent.
_PARAMETER = re.compile(r"%(?:\((\w+)\)s|%)")

# As parts of the text.
EMPTY_OBJECT: ColumnElement[Any] = sql_cast(literal_column("'{}'"), JSONB)
EMPTY_LIST: ColumnElement[Any] = sql_cast(literal_column("'[]'"), JSONB)


class Construct:
    """A statement of SQLAlchemy's, or text with parameters named as in `:name`."""

    def __init__(self, statement: Executable | str) -> None:
        self.statement = text(statement) if isinstance(statement, str) else statement

    @cached_property
    def _compiled(self) -> tuple[str, Mapping[str, object]]:
        compiled = cast("SQLCompiler", cast("ClauseElement", self.statement).compile(dialect=_DIALECT))
        names = compiled.bind_names
        return str(compiled), {name: bind.effective_value for bind, name in names.items() if not bind.required}

    @property
    def sql(self) -> str:
        """The text as the driver takes it."""
        return self._compiled[0]

    @cached_property
    def _numbered(self) -> tuple[bytes, tuple[str, ...]]:
        names: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            name = found[1]
            return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

        return _PARAMETER.sub(number, self.sql).encode(), tuple(names)

    def command(self, given: Mapping[str, object]) -> Command:
        """Returns the statement with parameters as libpq takes it."""
        text_, names = self._numbered
        parameters = self.parameters(given)
        return Command(text_, [parameters[name] for name in names])

    def parameters(self, given: Mapping[str, object]) -> Mapping[str, object]:
        """Returns all parameters of the text: those given, and the constants of the statement."""
        constants = self._compiled[1]
        return {**constants, **given} if constants else given


def table_of(kind: type[SQLModel]) -> Table[Any]:
    """Returns the table of a class, whose columns are found by name; a name that is none fails when a module loads."""
    table: Table[Any] = kind.__table__  # type: ignore[attr-defined]  # made by its metaclass
    return table


def columns_of(kind: type[SQLModel], record: type[DataclassInstance]) -> list[Column[Any]]:
    """Returns the columns that a record has the fields of, in their order."""
    columns = table_of(kind).c
    return [columns[field.name] for field in fields(record)]


def definitions(columns: Iterable[Column[Any]]) -> str:
    """Returns columns as text that defines the rows of a parameter: `name TYPE, …`."""
    return ", ".join(f"{item.name} {item.type.compile(dialect=_DIALECT)}" for item in columns)


def word(value: str) -> ColumnElement[str]:
    """A word of ours as a part of the text, so that every plan uses an index of the rows with it."""
    if not _WORD.fullmatch(value):
        raise ValueError(value)
    return literal_column(f"'{value}'", Text())


def words(*values: str) -> list[ColumnElement[str]]:
    """Words of ours, as `word`, for `in_` and `not_in`."""
    return [word(value) for value in values]


def seconds(of: SQLColumnExpression[Any]) -> ColumnElement[float]:
    """A moment in seconds since 1970, or a span in seconds."""
    return sql_cast(extract("epoch", of), Float)


def span(of: SQLColumnExpression[Any]) -> ColumnElement[dt.timedelta]:
    """So many seconds as an interval."""
    return of * literal_column("interval '1 second'", Interval())


def parameter(name: str, type_: TypeEngine[_Value]) -> BindParameter[_Value]:
    """A parameter of a statement that is a constant of its module."""
    return bindparam(name, type_=type_, required=True)


def json_parameter(name: str) -> ColumnElement[Any]:
    """A parameter that is JSON, as `json_text` writes it."""
    return sql_cast(parameter(name, Text()), JSONB)


def json_of(value: object) -> ColumnElement[Any]:
    """A value as JSON."""
    return sql_cast(literal(json_text(value), Text()), JSONB)


def locking(name: str) -> Select[*tuple[Any, ...]]:
    """Locks a name of ours until the commit: whoever else locks it waits."""
    return select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0)))


def one_of(name: str, type_: TypeEngine[Any] | None = None) -> ColumnElement[Any]:
    """What a column is equal to when it is one of a parameter's list: `= ANY(:name)`."""
    return func.any(bindparam(name, type_=ARRAY(type_ or Text())))


def lists(name: str, /, **columns: TypeEngine[Any]) -> TableValuedAlias:
    """Rows from parameters, one list for each column, which have the names of the columns."""
    given = (sql_cast(bindparam(key, required=True), ARRAY(type_)) for key, type_ in columns.items())
    return func.unnest(*given).table_valued(*_columns(columns)).render_derived(name=name)


def objects(name: str, parameter: str, /, **columns: TypeEngine[Any]) -> TableValuedAlias:
    """Rows from one parameter, as `recordset` makes it."""
    given = sql_cast(bindparam(parameter, type_=Text(), required=True), JSONB)
    return func.jsonb_to_recordset(given).table_valued(*_columns(columns)).render_derived(name=name, with_types=True)


def entries(name: str, of: SQLColumnExpression[Any]) -> TableValuedAlias:
    """The keys and values of an object, as text, in the columns `key` and `value`; joined to what has the object."""
    return (
        func.jsonb_each_text(of).table_valued(column("key", Text()), column("value", Text())).render_derived(name=name)
    )


def value_of(of: SQLColumnExpression[Any], key: ColumnElement[Any]) -> ColumnElement[str]:
    """The value of a key of an object, as text."""
    return of.op("->>", return_type=Text())(key)


def _columns(columns: Mapping[str, TypeEngine[Any]]) -> list[KeyedColumnElement[Any]]:
    return [column(key, type_) for key, type_ in columns.items()]
