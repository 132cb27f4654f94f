"""Reports that cannot be committed concern the node that made them, and nobody else."""

from __future__ import annotations

import asyncio
import logging

import pytest

from manager.fleet.desired import AttemptReport, ListenerBrokenError, NodeReport
from manager.lifecycle.reports import Reports
from manager.store.database import Database
from tests.integration.lifecycle.conftest import TERM, Node, enrol


def reports_of(database: Database) -> Reports:
    return Reports(database, TERM, lambda _concerned: None)


async def test_a_report_that_cannot_be_taken_in_does_not_hold_up_others(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    reports = reports_of(database)
    await enrol(database, ["good", "bad"])
    for name in ("good", "bad"):
        await Node(name, reports, database, {"cpu": 4000, "mem": 1 << 30}).join()
    senseless = NodeReport("bad", (), (), ("not a session",))
    sensible = NodeReport("good", (), (), ())
    running = asyncio.create_task(reports.run())
    try:
        with caplog.at_level(logging.CRITICAL):
            answers = await asyncio.gather(
                reports.reported(senseless), reports.reported(sensible), return_exceptions=True
            )
        assert isinstance(answers[0], ListenerBrokenError)
        assert answers[1] is None
        await reports.reported(sensible)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_links_end_when_the_term_is_over(database: Database) -> None:
    reports = Reports(database, TERM + 1, lambda _concerned: None)
    attempt = AttemptReport("00000000-0000-0000-0000-000000000000.1", "RUNNING", None, "", "", 0)
    running = asyncio.create_task(reports.run())
    with pytest.raises(ListenerBrokenError):
        await reports.reported(NodeReport("any", (attempt,), (), ()))
    with pytest.raises(Exception, match="term"):
        await running
