"""An agent whose outputs cannot be collected is a line a minute in the log, not a traceback at each try."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, cast

import pytest

from retinue.manager.agent_rpc.output import Piece, Span
from retinue.manager.agent_rpc.relay import AgentUnavailableError, AttemptLocation, Forwarder
from retinue.manager.controllers import log_collector
from retinue.manager.controllers.log_collector import OutputCollector
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.sessions import outputs
from retinue.manager.store.sessions.outputs import PendingOutput
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.dispatch.desired_state import Affected

ROW = PendingOutput(
    session_id=uuid.UUID(int=1), kernel_id=uuid.UUID(int=2), epoch=1, agent_id="n1", address="127.0.0.1:1", log_size=5
)


@pytest.mark.parametrize(
    ("failure", "level", "words"),
    [
        (ValueError("a mistake"), "ERROR", "ValueError('a mistake')"),
        (AgentUnavailableError("it is away"), "WARNING", "it is away"),
        (TimeoutError(), "WARNING", "nothing came within 30 s"),
    ],
)
async def test_failures_are_logged_once_and_their_end_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception, level: str, words: str
) -> None:
    async def stream_output(
        _forwarder: Forwarder, _location: AttemptLocation, _span: Span, *, follow: bool
    ) -> AsyncIterator[Piece]:
        assert not follow
        raise failure
        yield Piece(0, b"")

    async def collected(_self: OutputCollector, _row: PendingOutput) -> bool:
        return True

    caplog.set_level(logging.INFO, "retinue.manager.controllers.log_collector")
    monkeypatch.setattr(log_collector, "stream_output", stream_output)
    # What fails is met before the database.
    collector = OutputCollector(cast("Database", None), 1, cast("Forwarder", None), lambda _affected: None)
    limit = asyncio.Semaphore(1)
    assert [await collector._try_to_collect(ROW, limit) for _ in range(5)] == [False] * 5  # noqa: SLF001
    monkeypatch.setattr(OutputCollector, "_collect", collected)
    await collector._collect_from("n1", [ROW])  # noqa: SLF001
    what = "outputs of kernels that have ended cannot be collected from agent n1"
    assert [(record.levelname, record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
        (level, f"{what}, and is tried again: kernel {ROW.kernel_id}: {words}", level == "ERROR"),
        ("INFO", f"no longer so: {what} (5 times)", False),
    ]


@pytest.mark.parametrize("lost", [StoreUnavailable("the answer is lost"), asyncio.CancelledError()])
async def test_an_agent_hears_of_a_commit_whose_answer_was_lost(
    monkeypatch: pytest.MonkeyPatch, lost: BaseException
) -> None:
    kept: list[uuid.UUID] = []
    told: list[Affected] = []

    async def stream_output(
        _forwarder: Forwarder, _location: AttemptLocation, span: Span, *, follow: bool
    ) -> AsyncIterator[Piece]:
        assert not follow
        yield Piece(span.offset, b"hello")

    async def check(_tx: object, _term: int) -> None:
        pass

    async def keep(_tx: object, kernel_id: uuid.UUID, _epoch: int, _kept: outputs.KeptOutput) -> None:
        kept.append(kernel_id)

    class LosingDatabase:
        """Its commits take effect, and their answers are lost."""

        @contextlib.asynccontextmanager
        async def transaction(self) -> AsyncIterator[None]:
            yield
            raise lost

    monkeypatch.setattr(log_collector, "stream_output", stream_output)
    monkeypatch.setattr(leadership, "check", check)
    monkeypatch.setattr(outputs, "keep", keep)
    collector = OutputCollector(cast("Database", LosingDatabase()), 1, cast("Forwarder", None), told.append)
    with contextlib.suppress(UnrequestedCancellationError):
        assert not await cancellable(collector._try_to_collect, ROW, asyncio.Semaphore(1))  # noqa: SLF001
    assert kept == [ROW.kernel_id]
    assert told == [{ROW.agent_id: [ROW.session_id]}]
