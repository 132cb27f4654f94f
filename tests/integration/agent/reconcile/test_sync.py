"""The Sync stream over mutual TLS, with real kernels behind it."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.manager_side import INCARNATION, Conversation, attempt

if TYPE_CHECKING:
    from tests.integration.agent.conftest import Agent

K1, K2 = "11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"
K3 = "11111111-0000-4000-8000-000000000003"
HELD, RUNNING, EXITED = pb.ATTEMPT_STATE_HELD, pb.ATTEMPT_STATE_RUNNING, pb.ATTEMPT_STATE_EXITED
FAILED, STOPPING = pb.ATTEMPT_STATE_FAILED, pb.ATTEMPT_STATE_STOPPING


def reason(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(error)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "retinue"
    return str(info.reason)


async def ended(conversation: Conversation, *, silent: bool = False) -> grpc.aio.AioRpcError:
    """Takes messages in until the stream ends with an error; if `silent`, without an answer to any."""
    try:
        while True:
            await (conversation.read() if silent else conversation.step())
    except grpc.aio.AioRpcError as error:
        return error


async def later(manager: Conversation) -> None:
    """Has the agent do something that it was asked for after all else, which it reports once it has looked at that."""
    await manager.change(attempts=[attempt(K3, "true", session_id="later")])
    await manager.until_state(f"{K3}.1", EXITED)


async def test_whole_life(agent: Agent) -> None:
    manager = await agent.converse()
    assert manager.welcome.agent_id == agent.settings.agent_id
    assert "process" in manager.welcome.available_runtimes
    assert manager.welcome.capacity["cpu"] >= 1000
    assert not manager.welcome.attempts
    await manager.snapshot(
        attempt(K1, "sh", "-c", "echo hello $NAME; exit 3", goal=pb.GOAL_HELD, environment={"NAME": "you"})
    )
    await manager.until_state(f"{K1}.1", HELD)
    began = time.time()
    await manager.change(attempts=[attempt(K1, "ignored", goal=pb.GOAL_RUNNING)])
    status = await manager.until_state(f"{K1}.1", EXITED)
    assert (status.exit_code, status.reason, status.log_size) == (3, "EXITED", 10)
    assert int(began) <= status.end_time.seconds <= time.time()
    logs = [piece async for piece in manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id=f"{K1}.1"))]
    assert b"".join(piece.data for piece in logs) == b"hello you\n"
    await manager.change(removed_attempt_ids=[f"{K1}.1"])
    await manager.until(lambda: f"{K1}.1" in manager.removed)
    assert not (agent.settings.state_dir / "attempts" / f"{K1}.1").exists()


async def test_gang_is_released_together(agent: Agent) -> None:
    manager = await agent.converse()
    await manager.snapshot(
        attempt(K1, "true", goal=pb.GOAL_HELD), attempt(K2, "true", image="none", goal=pb.GOAL_RUNNING)
    )
    status = await manager.until_state(f"{K2}.1", FAILED)
    assert status.reason == "ISOLATION_UNSUPPORTED"
    assert not status.HasField("exit_code")
    await manager.until_state(f"{K1}.1", HELD)
    await manager.change(attempts=[attempt(K1, "true", goal=pb.GOAL_RUNNING)])
    await later(manager)
    assert manager.statuses[f"{K1}.1"].state == HELD
    await manager.change(removed_attempt_ids=[f"{K2}.1"])
    await manager.until_state(f"{K1}.1", EXITED)


async def test_end_is_kept_until_acked_and_not_desired(agent: Agent) -> None:
    manager = await agent.converse()
    manager.auto_ack = False
    await manager.snapshot(attempt(K1, "true"))
    await manager.until_state(f"{K1}.1", EXITED)
    await manager.change(removed_attempt_ids=[f"{K1}.1"])
    await later(manager)
    assert f"{K1}.1" in manager.statuses
    manager.close()
    again = await agent.converse()
    assert again.statuses[f"{K1}.1"].exit_code == 0
    await again.snapshot()
    await again.until(lambda: f"{K1}.1" in again.removed)
    # The same attempt never starts a second time, whatever a manager says.
    await again.change(attempts=[attempt(K1, "true")])
    status = await again.until_state(f"{K1}.1", FAILED)
    assert status.reason == "ALREADY_REMOVED"


async def test_stop_is_polite_then_final(agent: Agent) -> None:
    manager = await agent.converse()
    polite = "trap 'echo bye; exit 9' TERM; echo on; while :; do sleep 0.05; done"
    deaf = "trap '' TERM; echo on; while :; do sleep 0.05; done"
    await manager.snapshot(
        attempt(K1, "sh", "-c", polite, session_id="a"), attempt(K2, "sh", "-c", deaf, session_id="b")
    )
    for kernel in (K1, K2):
        await manager.until_state(f"{kernel}.1", RUNNING)
        logs = manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id=f"{kernel}.1", follow=True))
        assert (await anext(aiter(logs))).data == b"on\n"
    await manager.change(
        attempts=[attempt(K1, goal=pb.GOAL_STOPPED, stop_grace=600), attempt(K2, goal=pb.GOAL_STOPPED, stop_grace=600)]
    )
    status = await manager.until_state(f"{K1}.1", EXITED)
    assert (status.exit_code, status.reason) == (9, "STOPPED")
    await manager.until_state(f"{K2}.1", STOPPING)
    await manager.change(attempts=[attempt(K2, goal=pb.GOAL_STOPPED, stop_grace=0)])
    status = await manager.until_state(f"{K2}.1", EXITED)
    assert (status.exit_code, status.reason) == (137, "STOPPED")


async def test_logs_follow_to_the_end(agent: Agent) -> None:
    manager = await agent.converse()
    await manager.snapshot(attempt(K1, "sh", "-c", "for i in 1 2 3; do echo line $i; sleep 0.1; done"))
    await manager.until_state(f"{K1}.1", RUNNING)
    request = pb.StreamLogsRequest(attempt_id=f"{K1}.1", offset=0, follow=True)
    data = b"".join([piece.data async for piece in manager.stub.StreamLogs(request)])
    status = await manager.until_state(f"{K1}.1", EXITED)
    assert data == b"line 1\nline 2\nline 3\n"
    assert len(data) == status.log_size
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id=f"{K1}.1", offset=len(data) + 1)).read()
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert reason(caught.value) == "OFFSET_PAST_END"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id="none.1")).read()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.attack("former-commands")
async def test_terms(agent: Agent) -> None:
    first = await agent.converse(term=5)
    second = await agent.converse(term=5)
    assert (await ended(first)).code() is grpc.StatusCode.ABORTED
    stale = Conversation(agent.channel())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stale.open(agent.settings.agent_id, term=4)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason(caught.value) == "STALE_TERM"
    # The stream in place is not harmed by a stale one, nor is the term forgotten in a restart.
    await second.snapshot()
    await later(second)
    await agent.stop()
    await agent.start()
    stale = Conversation(agent.channel())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stale.open(agent.settings.agent_id, term=4)
    assert reason(caught.value) == "STALE_TERM"


@pytest.mark.attack("agents-as-managers")
async def test_only_a_manager_may_call(agent: Agent) -> None:
    key, certificate = agent.manager.authority.issue("x.agent.retinue", "spiffe://retinue/agent/x")
    stranger = Conversation(agent.channel(key, certificate))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stranger.open(agent.settings.agent_id)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert reason(caught.value) == "METHOD_DENIED"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stranger.stub.StreamLogs(pb.StreamLogsRequest(attempt_id="x.1")).read()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_restored_manager_is_obeyed_and_ends_only_what_it_names(agent: Agent) -> None:
    lost = await agent.converse(term=9)
    await lost.snapshot(attempt(K1), attempt(K2))
    for name in (K1, K2):
        await lost.until_state(f"{name}.1", RUNNING)
    incarnation = str(uuid.uuid4())
    restored = Conversation(agent.channel())
    await restored.open(agent.settings.agent_id, term=1, incarnation=incarnation)
    assert {status.state for status in restored.statuses.values()} == {RUNNING}
    assert restored.statuses[f"{K2}.1"].session_id == attempt(K2).session_id
    # The second one is newer than the backup: nothing is said of it.
    await restored.snapshot(attempt(K1), attempt(K3, "true"), names_others=False)
    await restored.until_state(f"{K3}.1", EXITED)
    assert restored.statuses[f"{K2}.1"].state == RUNNING

    await agent.stop()
    await agent.start()
    for term in (10, 1):
        again = Conversation(agent.channel())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await again.open(agent.settings.agent_id, term=term)
        assert reason(caught.value) == "STALE_INCARNATION"
    restored = Conversation(agent.channel())
    await restored.open(agent.settings.agent_id, term=1, incarnation=incarnation)
    await restored.snapshot(attempt(K1), names_others=False)
    await restored.change(removed_attempt_ids=[f"{K2}.1"])
    await restored.until(lambda: f"{K2}.1" in restored.removed)
    assert restored.statuses[f"{K1}.1"].state == RUNNING


async def test_wrong_agent_and_wrong_steps(agent: Agent) -> None:
    wrong = Conversation(agent.channel())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await wrong.open("another-agent")
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    for step in (
        pb.SyncRequest(change=pb.Change()),
        pb.SyncRequest(ack=pb.Ack(sequence=1)),
        pb.SyncRequest(hello=pb.Hello(term=1, incarnation=INCARNATION)),
        pb.SyncRequest(snapshot=pb.Snapshot(attempts=[pb.Attempt(id="../../etc.1", kernel_id="../../etc", number=1)])),
        pb.SyncRequest(snapshot=pb.Snapshot(networks=[pb.Network(session_id="no-uuid")])),
    ):
        manager = await agent.converse()
        await manager.call.write(step)
        error = await ended(manager)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason(error) == "INVALID_FIELD"


async def test_silent_manager_is_dropped(agent: Agent) -> None:
    manager = await agent.converse(interval=0.05)
    assert (await ended(manager, silent=True)).code() is grpc.StatusCode.UNAVAILABLE


async def test_stopping_ends_streams_and_leaves_kernels(agent: Agent) -> None:
    manager = await agent.converse()
    await manager.snapshot(attempt(K1))
    await manager.until_state(f"{K1}.1", RUNNING)
    logs = manager.stub.StreamLogs(pb.StreamLogsRequest(attempt_id=f"{K1}.1", follow=True))
    reading = asyncio.create_task(logs.read())
    agent.stopping.set()
    assert (await ended(manager)).code() is grpc.StatusCode.UNAVAILABLE
    assert agent.task is not None
    await agent.task
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await reading
    agent.task = None
    await agent.start()
    again = await agent.converse(term=2)
    assert again.statuses[f"{K1}.1"].state == RUNNING
    await again.snapshot()
    await again.until(lambda: f"{K1}.1" in again.removed)
