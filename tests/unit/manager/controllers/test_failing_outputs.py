"""An agent whose outputs cannot be collected is a line a minute in the log, not a traceback at each try."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from typing import cast

import pytest

from retinue.manager.agent_rpc.output import Piece, Span
from retinue.manager.agent_rpc.relay import AgentUnavailableError, AttemptLocation, Forwarder
from retinue.manager.controllers import log_collector
from retinue.manager.controllers.log_collector import OutputCollector
from retinue.manager.store.postgres.database import Database
from retinue.manager.store.sessions.outputs import PendingOutput

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
