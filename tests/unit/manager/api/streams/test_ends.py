"""A stream into a kernel names the end of the kernel: it waits for the report of an end, and for nothing else."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from retinue.manager.agent_rpc.relay import AgentRefusedError, AgentUnavailableError, AttemptLocation
from retinue.manager.api.streams.ends import naming_the_end
from retinue.manager.domain.session.states import KernelState
from retinue.manager.session import kernel_locator
from retinue.manager.session.kernel_locator import KernelNotRunningError
from retinue.manager.store.postgres.database import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOCATION = AttemptLocation("n1", "192.0.2.1:7443", "a.1")
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
ENDED = AgentRefusedError(PRECONDITION, "STATE_FORBIDS", "attempt a.1 does not run", {"kind": "attempt", "id": "a.1"})
FORGOTTEN = AgentRefusedError(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", "there is no attempt", {"kind": "attempt"})
PAUSED = AgentRefusedError(PRECONDITION, "STATE_FORBIDS", "the kernel is paused: docker pause", {})
LOST = AgentUnavailableError("the connection to agent n1 broke", agent_id="n1")


class Database:
    """Knows of the end after some looks."""

    def __init__(self, looks: float, *, reached: bool = True) -> None:
        self.before = looks
        self.looks = 0
        self._reached = reached

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Database]:
        if not self._reached:
            raise StoreUnavailable("it is gone")
        yield self

    async def check(self, *_: object) -> None:
        self.looks += 1
        if self.looks > self.before:
            raise KernelNotRunningError("main1", KernelState.TERMINATED, "COMMAND_FAILED", 137)


async def fail(database: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_locator, "check", lambda tx, *values: tx.check(*values))
    async with naming_the_end(database, uuid.uuid4(), "main1", LOCATION):
        raise error


@pytest.mark.parametrize("error", [ENDED, FORGOTTEN])
async def test_the_end_is_reported_later(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelNotRunningError, match="COMMAND_FAILED, exit code 137"):
        await fail(Database(3), error, monkeypatch)


@pytest.mark.parametrize("error", [LOST, PAUSED])
async def test_the_end_is_known(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelNotRunningError):
        await fail(Database(0), error, monkeypatch)


@pytest.mark.parametrize("error", [LOST, PAUSED])
async def test_a_kernel_that_runs_is_not_waited_for(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(float("inf"))
    with pytest.raises(type(error)) as raised:
        await fail(database, error, monkeypatch)
    assert (raised.value, database.looks) == (error, 1)


async def test_without_the_database_the_agent_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgentRefusedError) as raised:
        await fail(Database(0, reached=False), ENDED, monkeypatch)
    assert raised.value is ENDED
