"""Pages of metrics that cannot be read are a line a minute in the log, and one when they can be read again."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from retinue.agent.probes.scraper import PageError, Scraper
from tests.support.eventually import eventually

WHERE = "retinue.agent.probes.scraper"


@pytest.mark.parametrize(("failure", "level"), [(PageError("status 500"), "INFO"), (KeyError("a mistake"), "ERROR")])
async def test_a_page_that_is_not_read_is_logged_once_and_its_end_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception, level: str
) -> None:
    reads = 0

    async def read_page(_self: Scraper, _attempt_id: str) -> None:
        nonlocal reads
        reads += 1
        if reads <= 5:
            raise failure

    caplog.set_level(logging.INFO, WHERE)
    monkeypatch.setattr(Scraper, "_read_page", read_page)
    scraper = Scraper(cast("Any", None), cast("Any", None), dict)
    scraper.watch({"k.1": frozenset({"depth"})}, 0.001)
    running = asyncio.create_task(scraper.run())
    try:
        await eventually(lambda: "no longer so" in caplog.text)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    levels = [(record.levelname, bool(record.exc_info)) for record in caplog.records]
    assert levels == [(level, level == "ERROR"), ("INFO", False)]
    assert str(failure) in caplog.messages[0]
    assert caplog.messages[1] == "no longer so: metrics of attempt k.1 are not known (5 times)"
