"""A link that its agent refuses says so where operators read it, and what to do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from retinue.manager.dispatch.agent_link import AgentLink


@pytest.mark.parametrize(
    ("code", "level"),
    [(grpc.StatusCode.FAILED_PRECONDITION, logging.WARNING), (grpc.StatusCode.UNAVAILABLE, logging.INFO)],
)
async def test_a_refusal_is_a_warning(
    code: grpc.StatusCode, level: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_link: AgentLink) -> None:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "a leader of term 4 was here before")

    async def stop(_seconds: float) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(AgentLink, "_stream", refuse)
    unused = cast("Any", None)
    link = AgentLink(
        "n1",
        "x:1",
        incarnation="i",
        term=1,
        dialer=unused,
        heartbeat=1.0,
        lost_after=60.0,
        desired=unused,
        protected=unused,
        removable=unused,
        listener=unused,
        clock=lambda: 0.0,
        sleep=stop,
    )
    with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
        await link.run()
    (record,) = caplog.records
    assert record.levelno == level
    assert ("begin-incarnation" in record.getMessage()) == (level == logging.WARNING)
