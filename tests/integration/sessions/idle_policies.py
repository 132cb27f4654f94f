"""Idle policies of the default group, what they say of sessions, and time that passes for a session as the manager
sees it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING

import psycopg
from google.protobuf.duration_pb2 import Duration

from retinue.manager.v1 import idle_pb2 as pb
from retinue.manager.v1 import session_pb2
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.client import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

GROUP = "default"


def seconds(number: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(dt.timedelta(seconds=number))
    return duration


def check_of(session: session_pb2.Session, checker: pb.IdleChecker.ValueType) -> pb.IdleCheck:
    return next(check for check in session.idle_checks if check.checker == checker)


@contextlib.asynccontextmanager
async def no_policy_afterwards(client: Client) -> AsyncIterator[str]:
    """The group whose policy a test sets. Afterwards it has none, and no sessions."""
    try:
        yield GROUP
    finally:
        await client.resource_groups.update(GROUP, idle_policy=pb.IdlePolicy())
        async for session in client.sessions.list():
            await session.terminate(force=True)
            await session.wait_ended(NEVER)


async def let_be_unused(cluster: Cluster, unused: float, *sessions: Session, warned: float = 0.0) -> None:
    """Makes the manager know of no use of sessions in the last so many seconds, and of no warning in the last `warned`:
    no test waits for them, and what is to be done in time has all the time that a policy gives.
    """
    url = f"postgresql://postgres@/retinue?host={cluster.directory}/manager/postgres"
    values = {"unused": unused, "warned": warned, "ids": [session.id for session in sessions]}
    async with await psycopg.AsyncConnection.connect(url) as connection:
        changed = await connection.execute(
            """
            UPDATE session SET start_time = least(start_time, now() - make_interval(secs => %(unused)s))
            WHERE id = ANY(%(ids)s::uuid[])
            """,
            values,
        )
        assert changed.rowcount == len(sessions)
        await connection.execute(
            """
            UPDATE session_idle SET
                interaction_time = least(interaction_time, now() - make_interval(secs => %(unused)s)),
                warned = (
                    SELECT coalesce(
                        jsonb_object_agg(key, least(value::float8, extract(epoch FROM now())::float8 - %(warned)s)), '{}'
                    ) FROM jsonb_each_text(warned)
                )
            WHERE session_id = ANY(%(ids)s::uuid[])
            """,
            values,
        )
