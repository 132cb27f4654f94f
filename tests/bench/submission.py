"""Submitting sessions: many at once against COPY of the same rows, one at a time against a
bare call and a bare INSERT with COMMIT.

A manager by itself, without agents, on a PostgreSQL that syncs to disk; nothing is placed. `COPY` writes what the bulk
left in `session`, `kernel` and `journal` into tables of the same columns and indexes, in one transaction, through
psycopg. The bare call is a unary echo of the same sizes between two processes over TLS with the same library; the bare
INSERT writes one of those rows of `session`. Idempotency keys are on in ours. Rounds alternate; the scheduler's look at
what came is not part of ours, and gets its time between rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retinue.client.aio import Client
from retinue.client.spec import session_spec
from retinue.manager.identity.authority import Authority
from retinue.manager.store.postgres.embedded import EmbeddedServer
from tests.bench import end_politely, report

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = ("session", "kernel", "journal")
_METHOD = "/bench.Echo/Call"


async def echo_server(directory: Path) -> None:
    """Answers every call with as many bytes as its header asks for, until it is killed; writes its port to a file."""

    async def call(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return request[: int(dict(context.invocation_metadata() or ())["size"])]

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Call": grpc.unary_unary_rpc_method_handler(call)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    pair = ((directory / "echo.key").read_bytes(), (directory / "echo.pem").read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    (directory / "echo.port.new").write_text(str(port))
    (directory / "echo.port.new").rename(directory / "echo.port")
    await server.wait_for_termination()


def prepare_echo(directory: Path) -> bytes:
    """Writes key and certificate of the echo; returns the CA's certificate."""
    (directory / "authority").mkdir(0o700)
    authority = Authority.load(directory / "authority", lambda: dt.datetime.now(dt.UTC))
    issued = authority.issue_server(["localhost"])
    (directory / "echo.key").write_bytes(issued.key)
    (directory / "echo.pem").write_bytes(issued.certificate)
    return authority.certificate


@contextlib.contextmanager
def child(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this interpreter, ended at the end."""
    process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def appears(path: Path) -> str:
    """The content of a file, once it is there."""
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.05)
    return path.read_text()


async def bulk(client: Client, connection: psycopg.Connection[Any], count: int, rounds: int) -> None:
    """Prints the line of many at once."""
    spec = session_spec(type="batch", command=["true"], slots={"cpu": "1", "mem": "64m"}, environment={"A": "b"})
    values, peers = [], []
    for number in range(rounds + 1):
        begin = time.perf_counter()
        await client.sessions.create_many([spec] * count)
        took = time.perf_counter() - begin
        against = await asyncio.to_thread(copy, connection, count)
        if number:
            values.append(count / took)
            peers.append(count / against)
        # What waits is looked at by the scheduler again and again; the next round begins with nothing waiting.
        connection.execute("DELETE FROM session")
        await asyncio.sleep(1.0)
    report("submit-bulk", statistics.median(values), "sessions/s", statistics.median(peers), spread=values)


def copy(connection: psycopg.Connection[Any], count: int) -> float:
    """Seconds that COPY of the newest bulk's rows takes."""
    rows = {}
    for table in TABLES:
        with connection.cursor() as cursor, cursor.copy(f"COPY {_rows_of(connection, table)} TO STDOUT") as out:
            rows[table] = b"".join(bytes(part) for part in out)
        connection.execute(f"CREATE TABLE bench.{table} (LIKE public.{table} INCLUDING ALL)")
    lines = {table: data.splitlines(keepends=True) for table, data in rows.items()}
    if {table: len(found) for table, found in lines.items()} != dict.fromkeys(TABLES, count):
        raise RuntimeError("the rows are not those of one bulk")
    begin = time.perf_counter()
    with connection.transaction(), connection.cursor() as cursor:
        for table, found in lines.items():
            with cursor.copy(f"COPY bench.{table} ({_columns(connection, table)}) FROM STDIN") as into:
                for line in found:
                    into.write(line)
    took = time.perf_counter() - begin
    for table in TABLES:
        connection.execute(f"DROP TABLE bench.{table}")
    return took


def _rows_of(connection: psycopg.Connection[Any], table: str) -> str:
    if table == "journal":
        return "(SELECT j.* FROM journal j JOIN session s ON s.id = j.session_id WHERE j.kind = 'CREATED')"
    return f"(SELECT {_columns(connection, table)} FROM {table})"


def _columns(connection: psycopg.Connection[Any], table: str) -> str:
    found = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s"
        " AND is_generated = 'NEVER' ORDER BY ordinal_position",
        (table,),
    )
    return ", ".join(name for (name,) in found)


async def single(
    client: Client, connection: psycopg.Connection[Any], stub: Any, insert: tuple[str, tuple[Any, ...]], count: int
) -> None:
    """Prints the line of one at a time."""
    request = session_spec(type="batch", command=["true"], slots={"cpu": "1", "mem": "64m"}).SerializeToString()
    ours, calls, writes = [], [], []
    for number in range(count + 10):
        begin = time.perf_counter()
        session = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "1", "mem": "64m"})
        ended = time.perf_counter()
        size = session.view.ByteSize()
        payload = request.ljust(size, b"\0")
        called = time.perf_counter()
        await stub(payload, metadata=(("size", str(size)),))
        answered = time.perf_counter()
        statement, row = insert
        connection.execute(statement, (str(uuid.uuid4()), *row))
        written = time.perf_counter()
        if number >= 10:
            ours.append(ended - begin)
            calls.append(answered - called)
            writes.append(written - answered)
        connection.execute("DELETE FROM session")
        connection.execute("DELETE FROM bench.single")
    peer = statistics.median(calls) + statistics.median(writes)
    report("submit-single-p50", statistics.median(ours) * 1000, "ms", peer * 1000)


def prepare_insert(connection: psycopg.Connection[Any]) -> tuple[str, tuple[Any, ...]]:
    """An INSERT of one row like those of `session`, without its id."""
    connection.execute("CREATE TABLE bench.single (LIKE public.session INCLUDING ALL)")
    columns = [name for name in _columns(connection, "session").split(", ") if name not in ("id", "number")]
    shown = ", ".join(f"{name}::text" for name in columns)
    row = connection.execute(f"SELECT {shown} FROM session LIMIT 1").fetchone()
    if row is None:
        raise RuntimeError("there is no session to take the row from")
    types = dict(
        connection.execute(
            "SELECT column_name, udt_name::text FROM information_schema.columns"
            " WHERE table_schema = 'public' AND table_name = 'session'"
        ).fetchall()
    )
    places = ", ".join(f"%s::{types[name]}" for name in columns)
    return f"INSERT INTO bench.single (id, {', '.join(columns)}) VALUES (%s, {places})", tuple(row)


async def main(count: int, rounds: int, singles: int) -> None:
    """Prints both lines."""
    with contextlib.ExitStack() as stack:
        Path("/var/lib/retinue").mkdir(mode=0o711, parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="bench-", dir="/var/lib/retinue"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o711)
        database = EmbeddedServer(directory / "postgres")
        url = await database.start()
        try:
            certificate = prepare_echo(directory)
            stack.enter_context(child(Path(__file__), "--echo", directory))
            ports = []
            for _ in range(2):
                with socket.create_server(("127.0.0.1", 0)) as free:
                    ports.append(free.getsockname()[1])
            stack.enter_context(
                child(
                    *(
                        "-m",
                        "retinue.manager.main",
                        "serve",
                        "--dev",
                        "--data-dir",
                        directory / "manager",
                        "--database-url",
                        url,
                    ),
                    *("--listen", f"127.0.0.1:{ports[0]}", "--agent-listen", f"127.0.0.1:{ports[1]}"),
                    *("--advertise", "localhost"),
                )
            )
            facts = json.loads(await appears(directory / "manager" / "dev.json"))
            (directory / "ca.pem").write_text(facts["ca"])
            echo = grpc.aio.secure_channel(
                f"localhost:{await appears(directory / 'echo.port')}", grpc.ssl_channel_credentials(certificate)
            )
            connection = stack.enter_context(psycopg.connect(url, autocommit=True))
            connection.execute("CREATE SCHEMA bench")
            ca = str(directory / "ca.pem")
            async with echo, Client.connect(f"localhost:{ports[0]}", token=facts["token"], ca=ca) as client:
                await bulk(client, connection, count, rounds)
                await client.sessions.create(type="batch", command=["true"], slots={"cpu": "1", "mem": "64m"})
                insert = prepare_insert(connection)
                await single(client, connection, echo.unary_unary(_METHOD), insert, singles)
        finally:
            stack.close()
            await database.stop()


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="sessions in a bulk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--echo", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.count, given.rounds, given.singles = 1_000, 1, 30
    asyncio.run(echo_server(given.echo) if given.echo else main(given.count, given.rounds, given.singles))
