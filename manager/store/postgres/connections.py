"""Pools of connections to PostgreSQL: how they are made, how a silent peer is noticed,
and what is not taken back into them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
import uuid
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import sqlalchemy.exc
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.types.array import ListDumper
from sqlalchemy import event
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from retinue.rpc import failpoints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg.abc import AdaptContext, Buffer

DRIVER = "postgresql+psycopg"
# How long a call waits for a connection of its lane that another one uses.
POOL_SECONDS = 5
# A server whose machine is busy takes seconds to begin a connection, and then answers as fast as over the others.
CONNECT_SECONDS = 15
# A connection whose peer is gone without a word is given up after about this time, unless the URL says otherwise.
_LIVENESS: Mapping[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# The same on the server's side, which by its own settings looks after hours;
# a socket of the machine needs none and ignores them.
_SERVER_LIVENESS: Mapping[str, str] = {
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
_DIALECT = PGDialectAsync_psycopg()  # type: ignore[no-untyped-call]

_HOST_AND_PORT = re.compile(r"(?:\[[^\]]*\]|[^:/\[\]]*):[0-9]*")
_SCHEMES = ("postgres", "postgresql", DRIVER)
_EXAMPLE = "postgresql://USER:PASSWORD@HOST1:5432,HOST2:5432/DATABASE?target_session_attrs=read-write"

Driver = psycopg.AsyncConnection[Any]
_log = logging.getLogger(__name__)


class FlatListDumper(ListDumper):
    """Dumps lists of UUIDs, of integers and of strings at once, all others as the driver does.

    The driver asks of each item by a regular expression whether it has to be quoted: for thousands of rows that takes
    longer than their statement takes in the database.
    """

    def dump(self, obj: list[Any]) -> Buffer | None:
        """Returns the list as PostgreSQL reads arrays."""
        types = set(map(type, obj))
        if types == {uuid.UUID}:
            return f"{{{','.join([item.hex for item in obj])}}}".encode()
        if types == {int}:
            return f"{{{','.join(map(str, obj))}}}".encode()
        if types == {str}:
            joined = '","'.join(obj)
            # What has to be escaped, or cannot be sent, is for the driver to say;
            # two quotes for each place between items are ours.
            if "\\" not in joined and "\0" not in joined and joined.count('"') == 2 * (len(obj) - 1):
                return f'{{"{joined}"}}'.encode(self._tx.encoding)
        return super().dump(obj)


@failpoints.awaited("store", psycopg.OperationalError, sites=True)
async def open_connection(
    url: URL, name: str, settings: Mapping[str, str], context: AdaptContext | None = None
) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """Returns a connection in autocommit mode that the server shows as `name`; the caller closes it.

    What the URL says of libpq's parameters counts, but for the name. `settings` of the session are set by a statement
    after the login: `options` and PGOPTIONS belong to the administrator, and poolers do not take them. Raises the
    driver's errors, those of a server that gives no answer after the login among them.
    """
    connection = await psycopg.AsyncConnection.connect(
        autocommit=True, context=context, **connect_arguments(url), application_name=name
    )
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.execute(*_setting({"application_name": name, **_SERVER_LIVENESS, **settings}))
    except TimeoutError:
        await connection.close()
        raise psycopg.OperationalError(
            f"no answer within {CONNECT_SECONDS} s after the login: a pooler has no connection to the server left, or the server hangs"
        ) from None
    except BaseException:
        await connection.close()
        raise
    return connection


def connect_arguments(url: URL) -> dict[str, Any]:
    """Returns what libpq is given of a URL, with our own defaults."""
    _, arguments = _DIALECT.create_connect_args(url)  # type: ignore[no-untyped-call]
    # By default the encoding is the database's or PGCLIENTENCODING, and a database that has none answers in bytes.
    given = {name: value for name, value in arguments.items() if name not in {"context", "application_name"}}
    return {**_LIVENESS, **given, "client_encoding": "utf8"}


def _setting(settings: Mapping[str, str]) -> tuple[bytes, list[str]]:
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    return f"SELECT {calls}".encode(), [text for setting in settings.items() for text in setting]


def parse_url(url: str) -> URL:
    """A URL or `key=value` string of libpq, or a URL of SQLAlchemy, as SQLAlchemy takes it. Raises ValueError when it
    is not one of PostgreSQL.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme not in _SCHEMES:
        raise ValueError(f"the database URL must begin with postgresql://, not {scheme}://")
    if not url.strip():
        raise ValueError(f"the database URL is empty: write it as {_EXAMPLE}")
    parsed = _parse_of_sqlalchemy(url) if separator else None
    if parsed is not None and any(map(_HOST_AND_PORT.fullmatch, _listed(parsed, "host"))):
        # Its own way to write several hosts, which libpq would take for the name of one.
        return parsed.set(drivername=DRIVER)
    try:
        found = {
            name: str(value) for name, value in conninfo_to_dict(f"postgresql://{rest}" if separator else url).items()
        }
    except psycopg.ProgrammingError:
        if parsed is None:
            raise ValueError(f"the database URL cannot be parsed: write it as {_EXAMPLE}") from None
        return parsed.set(drivername=DRIVER)
    if "service" in found:
        raise ValueError("the database URL must not name a service: kernels are kept away from the hosts that it names")
    user, password, database = (found.pop(name, None) for name in ("user", "password", "dbname"))
    return URL.create(DRIVER, username=user, password=password, database=database, query=found)


def hosts_of(url: str) -> frozenset[str]:
    """Returns the names and addresses of the hosts of a database URL; paths of sockets are among them.
    Raises ValueError.
    """
    parsed = parse_url(url)
    named = [parsed.host or "", *_listed(parsed, "host"), *_listed(parsed, "hostaddr")]
    hosts = (host.rpartition(":")[0] if host.count(":") == 1 else host for host in named)
    return frozenset(host.strip("[]") for host in hosts if host)


def _parse_of_sqlalchemy(url: str) -> URL | None:
    try:
        return make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return None


def _listed(url: URL, name: str) -> list[str]:
    value = url.query.get(name, ())
    return [part for text in ((value,) if isinstance(value, str) else value) for part in text.split(",")]


def make_pool(url: URL, name: str, size: int, statement_timeout: float) -> AsyncEngine:
    """Returns a pool of at most `size` connections that the server shows as `name`;
    a statement ends after `statement_timeout` seconds.
    """
    milliseconds = int(statement_timeout * 1000)
    settings = {
        "statement_timeout": str(milliseconds),
        # Others wait for what a process holds that was paused or cut off.
        "idle_in_transaction_session_timeout": str(milliseconds // 2),
        "timezone": "UTC",
        # Statements over lists are few and look dear: making machine code of one takes longer than it.
        "jit": "off",
    }

    async def create() -> Driver:
        # With what the dialect knows of types.
        _, arguments = engine.dialect.create_connect_args(url)
        connection = await open_connection(url, name, settings, arguments.get("context"))
        connection.adapters.register_dumper(list, FlatListDumper)
        # `exchange` prepares statements: at a rollback, the driver would have the server forget its own and all others.
        connection.prepare_threshold = None
        await connection.set_autocommit(False)
        return connection

    engine = create_async_engine(
        url,
        async_creator=create,
        pool_size=size,
        max_overflow=0,
        # The connection that was used last: its server process has the statements prepared, and its memory is warm.
        pool_use_lifo=True,
        pool_timeout=POOL_SECONDS,
        json_deserializer=orjson.loads,
    )
    event.listen(engine.sync_engine, "checkout", _replace_ended)
    event.listen(engine.sync_engine, "checkin", _discard_unclean)
    return engine


def is_between_statements(driver: Driver) -> bool:
    """Returns whether nothing is under way on a connection; a transaction may be open."""
    status = driver.pgconn.transaction_status
    return driver.pgconn.pipeline_status == PipelineStatus.OFF and status in (
        TransactionStatus.IDLE,
        TransactionStatus.INTRANS,
        TransactionStatus.INERROR,
    )


def _replace_ended(connection: Any, _record: Any, _proxy: Any) -> None:
    """Has the pool give another connection for one that the server ended while nothing used it.

    A server says nothing over a connection that waits, but that it ends it: asking costs a microsecond and no message.
    """
    driver: Driver = connection.driver_connection
    waiting = select.poll()
    if not driver.closed:
        waiting.register(driver.fileno(), select.POLLIN)
    if driver.closed or waiting.poll(0):
        raise sqlalchemy.exc.DisconnectionError


def _discard_unclean(connection: Any, record: Any) -> None:
    """Keeps a connection that comes back to the pool with anything under way on it from being used again."""
    driver: Driver | None = None if connection is None else connection.driver_connection
    if driver is None or driver.closed:
        return
    if not is_between_statements(driver) or driver.pgconn.transaction_status != TransactionStatus.IDLE:
        _log.warning("a connection to the database came back in the middle of something: it is discarded")
        record.invalidate()
