"""Reports that cannot be committed cost what they are about, and nothing else;
an agent is believed about its own attempts only.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import logging
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from retinue.client.aio import fold
from retinue.manager.agent_rpc.reach import NotReached
from retinue.manager.api.sessions.convert import explanation_message, session_message
from retinue.manager.api.sessions.event_convert import event_message
from retinue.manager.dispatch import reports as reports_module
from retinue.manager.dispatch.convert import Rejected
from retinue.manager.dispatch.orphans import OutOfBounds
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.attempts import (
    AttemptStatus,
    AttemptUsage,
    ListenerBrokenError,
    NodeCondition,
    NodeReport,
    attempt_id,
)
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.service_ports import ServicePortSpec
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.domain.session.states import Observed
from retinue.manager.idle.measurements import Measurements
from retinue.manager.store.journal import journal
from retinue.manager.store.postgres.database import Database, StoreConflict, Transaction
from retinue.manager.store.sessions import sessions
from retinue.manager.store.sessions.idle import MeasuredKernel
from retinue.rpc.core.reasons import AgentConditionReason
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import states, submit
from tests.integration.manager.scheduled_nodes import two_nodes
from tests.support.eventually import eventually
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retinue.manager.session.transaction import WorkingSet


async def rows(database: Database, query: str) -> list[dict[str, Any]]:
    async with database.transaction() as tx:
        return [dict(row._mapping) for row in await tx.execute(text(query))]  # noqa: SLF001  # public


async def test_what_cannot_be_committed_costs_only_its_attempt(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    observe = reports_module._observe  # noqa: SLF001  # where anything may go wrong

    def fail_for_one(taken: WorkingSet, session_id: uuid.UUID, status: AttemptStatus) -> None:
        if status.message == "odd":
            raise ValueError("odd")
        observe(taken, session_id, status)

    monkeypatch.setattr(reports_module, "_observe", fail_for_one)
    async with two_nodes(database) as (honest, _):
        first, second = sorted(honest.attempts)
        odd = AttemptStatus(honest.attempts[first].key, Observed.EXITED, 0, "EXITED", "odd", 0)
        end = AttemptStatus(honest.attempts[second].key, Observed.EXITED, 0, "EXITED", "", 0)
        with caplog.at_level(logging.CRITICAL):
            await honest.reports.reported(NodeReport("honest", (odd, end)))
        assert sorted((await states(database)).values()) == ["RUNNING", "TERMINATED"]
        # So does a welcome.
        honest.attempts = {first: odd}
        with caplog.at_level(logging.CRITICAL):
            await honest.join()
        assert sorted((await states(database)).values()) == ["RUNNING", "TERMINATED"]


@pytest.mark.parametrize(
    ("ago", "kept"),
    [
        (dt.timedelta(minutes=30), lambda said, _made, _heard: said),
        (dt.timedelta(days=1), lambda _said, made, _heard: made),
        (dt.timedelta(days=-1), lambda _said, _made, heard: heard),
        (None, lambda *_: None),
    ],
    ids=["plausible", "before it was made", "after it was heard", "not known"],
)
async def test_the_end_time_that_an_agent_observed_is_kept_beside_that_of_the_commit(
    database: Database, ago: dt.timedelta | None, kept: Callable[..., dt.datetime | None]
) -> None:
    async with two_nodes(database) as (honest, _):
        async with database.transaction() as tx:
            await tx.execute(text("UPDATE attempt SET create_time = create_time - interval '1 hour'"))
        status = next(iter(honest.attempts.values()))
        said = None if ago is None else dt.datetime.now(dt.UTC) - ago
        end = AttemptStatus(status.key, Observed.EXITED, 0, "EXITED", end_time=said)
        await honest.reports.reported(NodeReport("honest", (end,)))
        (attempt,) = await rows(database, "SELECT * FROM attempt WHERE end_time IS NOT NULL")
        expected = kept(said, attempt["create_time"], attempt["end_time"])
        assert attempt["observed_end_time"] == expected
        async with database.transaction() as tx:
            session_id = attempt["session_id"]
            row = (await sessions.read(tx, [session_id]))[session_id]
            kernels = (await sessions.read_kernels(tx, [session_id]))[session_id]
            events = (await journal.read(tx, 0, 1000)).events
        shown = session_message(row, kernels, view=SpecView.BASIC).kernels[0]
        assert shown.end_time.ToDatetime(dt.UTC) == (expected or attempt["end_time"])
        view = None
        for event in events:
            if event.session_id == session_id:
                view = fold(view, event_message(event))
        assert view is not None
        end_time = view.kernels[0].end_time.ToDatetime(dt.UTC)
        # Without a time of its agent, the event's is that of the commit's end instead of its beginning.
        assert end_time == expected or (expected is None and attempt["end_time"] <= end_time)


async def test_conflicts_of_transactions_cost_no_link(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They left nothing behind: what an agent said is written by a later try."""
    transaction, numbers = database.transaction, itertools.count()

    @contextlib.asynccontextmanager
    async def losing() -> AsyncIterator[Transaction]:
        async with transaction() as tx:
            yield tx
            if next(numbers) % 3 < 2:
                raise StoreConflict("another transaction was in the way")

    async with two_nodes(database) as (honest, _):
        monkeypatch.setattr(database, "transaction", losing)
        ends = [AttemptStatus(each.key, Observed.EXITED, 0, "EXITED", "", 0) for each in honest.attempts.values()]
        await honest.reports.reported(NodeReport("honest", tuple(ends)))
        await honest.reports.conditions_changed("honest", [NodeCondition("DISK_FULL", "UNWRITABLE", "no room")])
        await honest.reports.liveness_changed("honest", AgentState.SUSPECT, 5.0)
        await honest.reports.reach_changed(
            "honest", "192.0.2.1:7443", NotReached(AgentConditionReason.REFUSED, "refused")
        )
        await honest.reports.quarantined("honest", Rejected("STRANGE", "a strange message"), 1.0)
        monkeypatch.undo()
        assert set((await states(database)).values()) == {"TERMINATED"}
        (agent,) = await rows(database, "SELECT state, to_jsonb(agent)::text AS text FROM agent WHERE id = 'honest'")
        assert agent["state"] == "SUSPECT"
        assert all(name in agent["text"] for name in ("DISK_FULL", "NOT_REACHED", "QUARANTINED"))


async def test_links_end_with_the_term(database: Database) -> None:
    reports = Reports(database, TERM + 1, lambda _affected: None)
    attempt = AttemptStatus((uuid.UUID(int=0), 1), Observed.RUNNING, None, "", "", 0)
    running = asyncio.create_task(reports.run())
    with pytest.raises(ListenerBrokenError):
        await reports.reported(NodeReport("any", (attempt,)))
    with pytest.raises(Exception, match="term"):
        await running


@pytest.mark.attack("reports-about-others")
async def test_an_agent_is_believed_about_its_own_attempts_only(database: Database) -> None:
    out_of_bounds = OutOfBounds(database, TERM)
    draining = asyncio.create_task(out_of_bounds.run())
    everything = "SELECT k.*, a.observed, a.end_time, a.log_size, a.log_pending FROM kernel k JOIN attempt a ON a.kernel_id = k.id ORDER BY k.id"
    try:
        async with two_nodes(database, out_of_bounds) as (honest, rogue):
            before = await rows(database, everything)
            claims = await rows(database, "SELECT * FROM claim ORDER BY kernel_id, slot")
            image = SeenImage("sha256:" + "0" * 64, "sha256:" + "1" * 64, (ServicePortSpec("x", "tcp", (1,)),))
            for state in (Observed.EXITED, Observed.FAILED, Observed.PULLING, Observed.RUNNING):
                forged = [
                    AttemptStatus(status.key, state, 0, Observed.EXITED, "forged", 4096, image)
                    for status in honest.attempts.values()
                ]
                await rogue.reports.reported(NodeReport("rogue", tuple(forged)))
                rogue.attempts = {attempt_id(*status.key): status for status in forged}
                await rogue.join()
            # Both at once, in one commit: the truth is not lost among the lies.
            end = next(iter(honest.attempts.values()))
            forged_end = AttemptStatus(end.key, Observed.EXITED, 77, "EXITED", "forged", 0)
            true_end = AttemptStatus(end.key, Observed.EXITED, 3, "EXITED", "", 0)
            assert await rows(database, everything) == before
            assert await rows(database, "SELECT * FROM claim ORDER BY kernel_id, slot") == claims
            await asyncio.gather(
                honest.reports.reported(NodeReport("honest", (true_end,))),
                rogue.reports.reported(NodeReport("rogue", (forged_end,))),
            )
            (ended,) = await rows(database, "SELECT exit_code FROM session WHERE state = 'TERMINATED'")
            assert ended == {"exit_code": 3}
            found = await eventually(lambda: rows(database, "SELECT * FROM agent WHERE id = 'rogue' AND drained"))
            assert [row["type"] for row in found[0]["found_conditions"]] == ["OUT_OF_BOUNDS"]
            (other,) = await rows(database, "SELECT drained, found_conditions FROM agent WHERE id = 'honest'")
            assert other == {"drained": False, "found_conditions": []}
    finally:
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)


async def test_what_keeps_an_agent_from_creating_kernels_is_shown_and_watched(database: Database) -> None:
    async with two_nodes(database) as (honest, rogue):
        await submit(database, "ann", "c")
        await SteppedScheduler(database, TERM, lambda _affected: None).run_once()
        (placed,) = await rows(
            database, "SELECT k.* FROM kernel k JOIN session s ON s.id = k.session_id WHERE s.name = 'c'"
        )
        node = honest if placed["agent_id"] == "honest" else rogue
        session_id, key = placed["session_id"], (placed["id"], placed["epoch"])

        async def said() -> tuple[str, str]:
            """What the row and the journal say."""
            async with database.transaction() as tx:
                row = (await sessions.read(tx, [session_id]))[session_id]
                events = (await journal.read(tx, 0, 1000)).events
            assert explanation_message(row, 0, ()).message == row.message
            view = None
            for event in events:
                if event.session_id == session_id:
                    view = fold(view, event_message(event))
            assert view is not None
            return row.message, view.message

        why = AttemptStatus(key, Observed.ACCEPTED, message="it builds ssh")
        await node.reports.reported(NodeReport(node.name, (why,)))
        assert await said() == (f"agent {node.name}: it builds ssh",) * 2
        number = len(await rows(database, "SELECT * FROM journal"))
        await node.reports.reported(NodeReport(node.name, (why,)))
        assert len(await rows(database, "SELECT * FROM journal")) == number
        await node.reports.reported(NodeReport(node.name, (AttemptStatus(key, Observed.CREATING),)))
        assert await said() == ("", "")


@pytest.mark.attack("reports-about-others")
async def test_networks_of_other_agents_stay(database: Database) -> None:
    async with two_nodes(database) as (honest, rogue):
        await submit(database, "ann", "c", cluster_size=2, single_node=True)
        await SteppedScheduler(database, TERM, lambda _affected: None).run_once()
        sites = await rows(database, "SELECT * FROM network_site ORDER BY agent_id")
        assert sites
        liar = rogue if sites[0]["agent_id"] == "honest" else honest
        session_ids = frozenset(row["session_id"] for row in sites)
        await liar.reports.reported(NodeReport(liar.name, (), removed_networks=session_ids))
        assert await rows(database, "SELECT * FROM network_site ORDER BY agent_id") == sites


@pytest.mark.attack("reports-about-others")
def test_what_others_say_an_attempt_uses_does_not_count() -> None:
    measurements = Measurements()
    kernel = MeasuredKernel(uuid.UUID(int=0), uuid.UUID(int=1), 1, "honest", {})
    meter = measurements._meter(kernel, 60.0, 60.0)  # noqa: SLF001  # made by what is read from the store
    name = attempt_id(uuid.UUID(int=1), 1)
    samples = [AttemptUsage(name, clock, clock, 1 << 20) for clock in (1.0, 2.0)]
    assert measurements.add("rogue", samples) == 2
    assert meter.seconds == 0
    assert measurements.add("honest", samples) == 0
    assert meter.seconds == 1


async def test_a_quarantine_keeps_placements_away_until_the_next_welcome(database: Database) -> None:
    async with two_nodes(database) as (honest, rogue):
        for node in (honest, rogue):
            await node.reports.quarantined(node.name, Rejected("BAD_ID", "a network belongs to no session"), 2.0)
        await submit(database, "ann", "c")
        scheduler = SteppedScheduler(database, TERM, lambda _affected: None)
        await scheduler.run_once()
        assert (await states(database))["c"] == "PENDING"
        (row,) = await rows(database, "SELECT found_conditions, blocked FROM agent WHERE id = 'rogue'")
        assert row["blocked"]
        assert [(item["type"], item["reason"]) for item in row["found_conditions"]] == [("QUARANTINED", "BAD_ID")]
        await rogue.join()
        (row,) = await rows(database, "SELECT found_conditions, blocked FROM agent WHERE id = 'rogue'")
        assert row == {"found_conditions": [], "blocked": False}
        await scheduler.run_once()
        assert (await states(database))["c"] == "SCHEDULED"
