"""Quotas in the scheduler's passes: counted from rows, never exceeded, and reported with amounts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.api.admin.quota_convert import quota_message
from retinue.manager.domain.session.spec import KernelSpec, MountSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.store.placement import quotas
from tests.integration.manager.reporting_node import TERM, Node, enrol
from tests.integration.manager.rows import execute, limit, states, submit, waits
from tests.integration.manager.scheduled_nodes import finish, roomy_node
from tests.integration.manager.scheduler.world import GIB
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


@pytest.mark.parametrize("strategy", ["drf", "fifo", "lifo", "fair-share"])
@pytest.mark.parametrize(
    "subject", [("USER", "ann"), ("PROJECT", "default"), ("RESOURCE_GROUP", "default")], ids=lambda pair: pair[0]
)
async def test_one_pass_does_not_go_beyond_it(database: Database, strategy: str, subject: tuple[str, str]) -> None:
    await execute(database, "UPDATE resource_group SET session_strategy = :strategy", strategy=strategy)
    await limit(database, *subject, slots={"cpu": 3500})
    async with roomy_node(database) as (node, scheduler):
        for number in range(6):
            await submit(database, "ann", f"s{number}")
        await scheduler.run_once()
        assert sorted((await states(database)).values()) == ["PENDING"] * 3 + ["SCHEDULED"] * 3
        await scheduler.run_once()
        assert sorted((await states(database)).values()) == ["PENDING"] * 3 + ["SCHEDULED"] * 3
        waiting = [name for name, state in (await states(database)).items() if state == "PENDING"]
        assert len(waiting) == 3
        whose = f"{subject[0].replace('_', ' ').lower()} {subject[1]}"
        for name in waiting:
            assert await waits(database, name) == (
                "QUOTA",
                f"{whose} holds 3 of 3.5 cpu; this asks 1",
                "POLICY",
                0,
            )
        # What ends makes room, and no counter has to be updated.
        await finish(node)
        await scheduler.run_once()
        assert sorted((await states(database)).values()) == ["SCHEDULED"] * 3 + ["TERMINATED"] * 3


async def test_number_of_sessions(database: Database) -> None:
    await limit(database, "USER", "ann", max_sessions=2)
    async with roomy_node(database) as (node, scheduler):
        for number in range(3):
            await submit(database, "ann", f"a{number}", cluster_size=2)
        await submit(database, "ben", "b0")
        await scheduler.run_once()
        assert await states(database) == {"a0": "SCHEDULED", "a1": "SCHEDULED", "a2": "PENDING", "b0": "SCHEDULED"}
        assert await waits(database, "a2") == ("QUOTA", "user ann has 2 of 2 sessions", "POLICY", 0)
        await limit(database, "USER", "ann", max_sessions=0)
        await finish(node)
        await scheduler.run_once()
        assert (await states(database))["a2"] == "PENDING"
        async with database.transaction() as tx:
            await quotas.remove(tx, "USER", "ann")
        await scheduler.run_once()
        assert (await states(database))["a2"] == "SCHEDULED"


async def test_system_sessions_do_not_count(database: Database) -> None:
    for subject in (("USER", "ann"), ("PROJECT", "default"), ("RESOURCE_GROUP", "default")):
        await limit(database, *subject, slots={"cpu": 1000}, max_sessions=1)
    system: dict[str, Any] = {"type": SessionType.SYSTEM, "mounts": (MountSpec("/srv", "/data"),)}
    async with roomy_node(database) as (node, scheduler):
        await execute(database, 'UPDATE agent SET backends = \'["process", "sftp"]\'')
        await submit(database, "ann", "files", kernel=KernelSpec(), **system)
        await submit(database, "ann", "first")
        await scheduler.run_once()
        # Marks of changes are applied: who is at the limit still gets at the files.
        await submit(database, "ann", "more-files", kernel=KernelSpec(), **system)
        await submit(database, "ann", "second")
        await scheduler.run_once()
        found = await states(database)
        assert found == {"files": "SCHEDULED", "first": "SCHEDULED", "more-files": "SCHEDULED", "second": "PENDING"}
        assert (await waits(database, "second"))[1].startswith("user ann has 1 of 1 session; user ann holds 1 of 1 cpu")
        subjects = [("USER", "ann"), ("PROJECT", "default"), ("RESOURCE_GROUP", "default")]
        async with database.transaction() as tx:
            for use in (await quotas.read_use(tx, subjects)).values():
                assert (use.sessions, use.slots["cpu"]) == (1, 1000)
            assert set((await quotas.count_pending(tx, subjects)).values()) == {1}
        # So does a scheduler that reads everything at once.
        again = SteppedScheduler(database, TERM, lambda _: None)
        await again.run_once()
        assert (await states(database))["second"] == "PENDING"
        await finish(node)
        await again.run_once()
        assert (await states(database))["second"] == "SCHEDULED"


async def test_all_violations_are_reported_together(database: Database) -> None:
    await limit(database, "USER", "ann", slots={"cpu": 1000, "mem": GIB}, max_sessions=1)
    await limit(database, "PROJECT", "default", slots={"mem": GIB // 2})
    await limit(database, "RESOURCE_GROUP", "default", slots={"cpu": 100_000})
    async with roomy_node(database) as (_, scheduler):
        await submit(database, "ann", "first")
        await scheduler.run_once()
        kernel = KernelSpec(command=("x",), slots={"cpu": "2", "mem": "2g"})
        await submit(database, "ann", "second", kernel=kernel)
        await scheduler.run_once()
        reason, message, _, _ = await waits(database, "second")
    assert reason == "QUOTA"
    assert message == (
        "user ann has 1 of 1 session; user ann holds 1 of 1 cpu and 256m of 1g mem; this asks 2 cpu and 2g mem; "
        "project default holds 256m of 512m mem; this asks 2g"
    )


async def test_strict_order_is_not_held_up_by_a_quota(database: Database) -> None:
    await execute(database, "UPDATE resource_group SET session_strategy = 'fifo'")
    await limit(database, "USER", "ann", slots={"cpu": 0})
    async with roomy_node(database) as (_, scheduler):
        await submit(database, "ann", "first")
        await submit(database, "ben", "second")
        await scheduler.run_once()
        assert await states(database) == {"first": "PENDING", "second": "SCHEDULED"}


async def test_a_users_quota_spans_groups(database: Database) -> None:
    await execute(
        database,
        """
            INSERT INTO resource_group (name, session_strategy, agent_strategy, start_timeout_seconds, version)
            VALUES ('other', 'drf', 'concentrated', 600, 1)
        """,
    )
    await limit(database, "USER", "ann", slots={"cpu": 1000})
    await limit(database, "RESOURCE_GROUP", "other", slots={"cpu": 0})
    async with roomy_node(database) as (node, scheduler):
        reports = node.reports  # the same stand-in listens for both
        await enrol(database, ["n1"])
        await execute(database, "UPDATE agent SET resource_group = 'other' WHERE id = 'n1'")
        await Node("n1", reports, database, {"cpu": 4000, "mem": GIB}).join()
        for group in ("default", "other"):
            await submit(database, "ann", f"in-{group}", resource_group=group)
        await submit(database, "ben", "bens", resource_group="other")
        await scheduler.run_once()
        assert await states(database) == {"in-default": "SCHEDULED", "in-other": "PENDING", "bens": "PENDING"}
        await execute(database, "DELETE FROM quota WHERE kind = 'RESOURCE_GROUP'")
        await scheduler.run_once()
        assert await states(database) == {"in-default": "SCHEDULED", "in-other": "PENDING", "bens": "SCHEDULED"}
        assert (await waits(database, "in-other"))[1] == "user ann holds 1 of 1 cpu; this asks 1"


async def test_what_never_fits_is_reported_first(database: Database) -> None:
    await limit(database, "USER", "ann", slots={"cpu": 1000})
    async with roomy_node(database) as (_, scheduler):
        await submit(database, "ann", "huge", cpu="500")
        await scheduler.run_once()
        assert (await waits(database, "huge"))[0] == "EXCEEDS_LARGEST_AGENT"


async def test_stored_limits_are_plain(database: Database) -> None:
    await limit(database, "USER", "ann", slots={"cpu": 1}, max_sessions=3)
    await limit(database, "USER", "ann", max_pending_sessions=5)
    rows = await execute(database, "SELECT slots::text, max_sessions, max_pending_sessions, version FROM quota")
    assert [(json.loads(str(slots)), *rest) for slots, *rest in rows] == [({}, None, 5, 2)]


BROKEN = {
    "a list": "'[7]'",
    "null": "'null'",
    "a text": """'{"cpu": "many"}'""",
    "no end": """'{"cpu": 1e30}'""",
    "nested": """'{"cpu": {"soft": 1}}'""",
    "negative": """'{"cpu": -1}'""",
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while it leads"])
async def test_a_quota_that_cannot_be_read_costs_whom_it_is_for(
    database: Database, kind: str, running: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await limit(database, "USER", "ann", slots={"cpu": 3000})
    await limit(database, "USER", "ben", slots={"cpu": 3000})
    async with roomy_node(database) as (_, scheduler):
        if running:
            await scheduler.run_once()
        await execute(database, f"UPDATE quota SET slots = {BROKEN[kind]} WHERE name = 'ann'")  # noqa: S608  # the test's own
        await submit(database, "ann", "a0")
        await submit(database, "ben", "b0")
        await scheduler.run_once()
        assert await states(database) == {"a0": "PENDING", "b0": "SCHEDULED"}
        reason, message, tier, _ = await waits(database, "a0")
        assert (reason, tier) == ("QUOTA", "POLICY")
        assert message == "the quota of user ann cannot be read: an administrator has to set it again"
        assert "quota USER ann cannot be read" in caplog.text
        async with database.transaction() as tx:
            (quota,) = await quotas.read(tx, [("USER", "ann")])
            use = await quotas.read_use(tx, [("USER", "ann")])
        assert quota_message(quota, use["USER", "ann"]).name == "ann"
        await limit(database, "USER", "ann", slots={"cpu": 3000})
        await scheduler.run_once()
        assert (await states(database))["a0"] == "SCHEDULED"
