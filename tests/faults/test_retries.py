"""Batch sessions that are run again: after failures, and across restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.manager.v1 import session_pb2
from tests.faults.counting import agent_of, work_directory
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_each_try_has_an_epoch_and_an_output_of_its_own(client: Client) -> None:
    command = 'echo "try $RETINUE_ATTEMPT"; sleep 0.2; [ "$RETINUE_ATTEMPT" = 3 ]'
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", command], max_attempts=3, retry_on_failure=True, retry_backoff=0.1
    )
    accepted = session.revision
    followed = b"".join([chunk.data async for chunk in client.sessions.logs(session.id, follow=True)])
    await session.wait_ended(NEVER)
    assert (session.state, session.result, session.exit_code, session.view.retries) == ("TERMINATED", "SUCCESS", 0, 2)
    assert followed == b"try 1\ntry 2\ntry 3\n"
    for attempt in (1, 2, 3, 0):
        chunks = [chunk async for chunk in client.sessions.logs(session.id, attempt=attempt)]
        assert b"".join(chunk.data for chunk in chunks) == f"try {attempt or 3}\n".encode()
    events = client.sessions.watch(after_revision=accepted, session_id=session.id, until_ended=True)
    moves = [event.session_moved async for event in events if event.HasField("session_moved")]
    assert [move.retries for move in moves if move.to_state == session_pb2.SESSION_STATE_PENDING] == [1, 2]
    decided = [move.to_state for move in moves if move.result != session_pb2.SESSION_RESULT_UNDEFINED]
    assert decided == [session_pb2.SESSION_STATE_TERMINATING, session_pb2.SESSION_STATE_TERMINATED]


async def test_restarts_in_the_middle_of_tries(client: Client, cluster: Cluster) -> None:
    # Each try waits until it may end.
    command = 'until [ -e go ]; do sleep 0.05; done; [ "$RETINUE_ATTEMPT" -ge 2 ]'
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", command], max_attempts=20, retry_on_failure=True, retry_backoff=0.5
    )
    accepted = session.revision
    await session.wait("RUNNING", timeout=NEVER)
    await cluster.manager.kill()
    (work_directory(cluster, session.kernels[0]) / "go").touch()
    await cluster.start_manager()
    await session.wait("PENDING", timeout=NEVER)
    await session.wait("RUNNING", timeout=NEVER)
    index = agent_of(cluster, session)
    await cluster.agents[index].process.kill()
    await cluster.manager.kill()
    (work_directory(cluster, session.kernels[0]) / "go").touch()
    await cluster.start_agent(index, wait=False)
    await cluster.start_manager()
    await session.wait_ended(NEVER)
    assert (session.state, session.result, session.view.retries) == ("TERMINATED", "SUCCESS", 1)
    # Whatever was killed meanwhile, the result was sent once.
    events = client.sessions.watch(after_revision=accepted, session_id=session.id, until_ended=True)
    moves = [event.session_moved async for event in events if event.HasField("session_moved")]
    decided = [move.to_state for move in moves if move.result != session_pb2.SESSION_RESULT_UNDEFINED]
    assert decided == [session_pb2.SESSION_STATE_TERMINATING, session_pb2.SESSION_STATE_TERMINATED]
    assert not await cluster.wait_clean(NEVER)
