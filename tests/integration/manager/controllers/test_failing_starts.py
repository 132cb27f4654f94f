"""What an agent tries again and again is said of the session, and a start is taken back after a bound."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from sqlalchemy import text

from retinue.manager.controllers import deadlines
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.attempts import AttemptStatus, FailingStep, NodeReport, Step
from retinue.manager.domain.session.events import Condition, ReasonChanged, parse_conditions, parse_event
from retinue.manager.domain.session.states import Observed
from tests.integration.manager.reporting_node import TERM, Node
from tests.support.databases import Postgres, fresh_database
from tests.support.stepped_scheduler import SteppedScheduler
from tests.vectors.store_vectors import node_with, submit

if TYPE_CHECKING:
    import uuid

    from retinue.manager.controllers.deadlines import LateStart
    from retinue.manager.store.postgres.database import Database


async def one(database: Database, query: str, **parameters: object) -> object:
    async with database.transaction() as tx:
        return (await tx.execute(text(query), parameters)).scalar_one()


async def conditions(database: Database, session_id: uuid.UUID) -> tuple[Condition, ...]:
    return parse_conditions(await one(database, "SELECT conditions FROM session WHERE id = :id", id=session_id))


async def age(database: Database, seconds: float) -> None:
    """As if all conditions had been there for so much longer."""
    async with database.transaction() as tx:
        await tx.execute(
            text("""
                UPDATE session SET conditions = (
                    SELECT jsonb_agg(jsonb_set(item, '{since}', to_jsonb((item->>'since')::timestamptz - make_interval(secs => :seconds))))
                    FROM jsonb_array_elements(conditions) item)
                WHERE conditions <> '[]'
            """),
            {"seconds": seconds},
        )


async def test_a_start_that_fails_at_one_step_is_taken_back_with_the_error(postgres: Postgres) -> None:
    async with fresh_database(postgres) as url, node_with(url, {"cpu": 1, "mem": 1}) as database:
        session_id = await submit(database, [{"cpu": 1}])
        scheduler, reports = SteppedScheduler(database, TERM, lambda _: None), Reports(database, TERM, lambda _: None)
        name = str(await one(database, "SELECT id FROM agent"))
        node = Node(name, reports, database, {"cpu": 1, "mem": 1})
        await scheduler.run_once()
        assert await one(database, "SELECT state FROM session") == "SCHEDULED"

        async def report(state: Observed, *steps: FailingStep) -> None:
            epoch = int(str(await one(database, "SELECT max(epoch) FROM attempt")))
            status = AttemptStatus((session_id, epoch), state, failing_steps=steps)
            await reports._commit([NodeReport(node.name, (status,))])  # noqa: SLF001  # what its queue does

        wrong = dt.datetime(1999, 1, 1, tzinfo=dt.UTC)
        await report(Observed.CREATING, FailingStep(Step.ATTACH, "Invalid argument (EINVAL)", 4, wrong))
        (found,) = await conditions(database, session_id)
        assert (found.type, found.agent) == (ConditionType.RETRYING, name)
        assert "Invalid argument (EINVAL); failed 4 times or more since" in found.message
        # A clock that is wrong makes nothing older than the attempt.
        assert found.since is not None
        assert found.since > wrong
        async with database.transaction() as tx:
            rows = await tx.execute(text("SELECT kind, payload::text FROM journal ORDER BY revision"))
            changed = [what for what in (parse_event(*row) for row in rows) if isinstance(what, ReasonChanged)]
        assert [what.new for what in changed if what.new] == [(ConditionType.RETRYING,)]

        late: list[LateStart] = []
        await deadlines.enforce(database, TERM, lambda _: None, late=late.extend)
        assert await one(database, "SELECT state FROM session") == "PREPARING"
        # It succeeds, and fails again later.
        await report(Observed.CREATING)
        assert await conditions(database, session_id) == ()
        await report(Observed.CREATING, FailingStep(Step.ATTACH, "Invalid argument (EINVAL)", 4))
        await age(database, deadlines.RETRY_BOUND + 1)
        await deadlines.enforce(database, TERM, lambda _: None, late=late.extend)
        assert await one(database, "SELECT state FROM session") == "PENDING"
        assert "Invalid argument (EINVAL)" in str(await one(database, "SELECT message FROM session"))
        assert await one(database, "SELECT failed_agents FROM session") == [name]
        assert [(start.agent_id, start.session_id) for start in late] == [(name, session_id)]
        assert await conditions(database, session_id) == ()
