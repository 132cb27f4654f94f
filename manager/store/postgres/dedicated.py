"""Connections outside the pool, each for one purpose: their statements have deadlines that
hold also when the server says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import psycopg

from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.manager.store.postgres.faults import fault_of
from retinue.rpc import failpoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DedicatedConnection = psycopg.AsyncConnection[tuple[Any, ...]]


@failpoints.awaited("store", StoreUnavailable, sites=True)
async def execute_within(
    connection: DedicatedConnection,
    seconds: float,
    statement: str,
    params: Sequence[object] | Mapping[str, object] = (),
) -> list[tuple[Any, ...]]:
    """Executes one statement and returns its rows; breaks the connection off when the caller
    is cancelled or there is no answer in time.

    Raises StoreUnavailable for an answer that did not come, and the server's errors as the driver raises them.
    """

    async def execute() -> list[tuple[Any, ...]]:
        cursor = await connection.execute(statement.encode(), params)
        return await cursor.fetchall() if cursor.description else []

    task = asyncio.create_task(execute())
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        if not task.done():
            # Not by cancelling the task: the driver would ask the server to end the statement first,
            # and wait for its answer.
            break_off(connection)
            await asyncio.wait((task,))
        # Retrieved, also when the caller was cancelled.
        task.exception()
    try:
        return task.result()
    except (psycopg.OperationalError, OSError) as error:
        if getattr(error, "sqlstate", None) is not None and not connection.closed:
            raise
        raise StoreUnavailable("the database does not answer", fault_of(error)) from error


@failpoints.awaited("store", psycopg.OperationalError, sites=True)
async def execute(connection: DedicatedConnection, statement: str) -> psycopg.AsyncCursor[tuple[Any, ...]]:
    """Executes one statement, however long that takes. Raises the driver's errors."""
    return await connection.execute(statement.encode())


async def is_readable(connection: DedicatedConnection, seconds: float) -> bool:
    """Waits until the server says anything over a connection that nothing else uses meanwhile, or ends it; returns
    False when it has not after so many seconds. What it said before may have been taken in: look at it first.

    The driver's own wait looks ten times a second.
    """
    loop = asyncio.get_running_loop()
    arrived, descriptor = asyncio.Event(), connection.fileno()
    loop.add_reader(descriptor, arrived.set)
    try:
        async with asyncio.timeout(seconds):
            await arrived.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True


async def take_notices(connection: DedicatedConnection) -> list[psycopg.Notify]:
    """Returns the notices that have come; does not wait for any. Raises the driver's errors, also when the connection
    has ended.
    """
    return [notice async for notice in connection.notifies(timeout=0)]


def break_off(connection: DedicatedConnection) -> None:
    """Ends a connection without a word to the server; a statement under way fails at once."""
    if connection.closed:
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
