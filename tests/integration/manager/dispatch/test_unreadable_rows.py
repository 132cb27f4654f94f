"""A row that another version wrote costs what it is about: everything else is placed, reported,
listed and ended as before.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import text

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.api.admin.fleet_convert import agent_message, group_message
from retinue.manager.api.sessions.convert import session_message
from retinue.manager.controllers import deadlines
from retinue.manager.dispatch.desired_state import read_desired
from retinue.manager.dispatch.sent_state import SentState
from retinue.manager.domain.session.mounts import MountRoot
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.domain.session.state_machine import SessionMachine
from retinue.manager.session.transaction import UnreadableSessionError, terminate
from retinue.manager.store.fleet import agents, groups
from retinue.manager.store.sessions import listing, sessions
from retinue.manager.store.sessions.visibility import Visibility
from retinue.manager.v1 import fleet_service_pb2 as fleet_pb
from retinue.manager.v1 import session_pb2 as pb
from tests.integration.manager.leading import FakeAgent, count, leading
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import states, submit
from tests.support.eventually import eventually

if TYPE_CHECKING:
    import uuid

    from retinue.manager.store.postgres.database import Database

# What rolling upgrades, downgrades and damage make of a stored spec.
SPECS = {
    "future member": """spec || '{"version": 1000, "hibernates": true}'""",
    "future member inside": """spec || '{"version": 1000, "retry": {"max_attempts": 1, "jitter": 2}}'""",
    "no kernel": "spec - 'kernel'",
    "no roles": "spec - 'roles'",
    "future type": """spec || '{"type": "SWARM"}'""",
    "numbers for texts": """jsonb_set(spec, '{kernel,command}', '[1, null]')""",
    "texts for numbers": """spec || '{"earliest_start_time": "noon", "time_limit_seconds": "long", "cluster_size": "two"}'""",
    "no version": "spec - 'version'",
    "a list": "'[]'",
    "null": "'null'",
}


async def damage(database: Database, name: str, change: str) -> None:
    async with database.transaction() as tx:
        await tx.execute(text(f"UPDATE session SET {change} WHERE name = :name"), {"name": name})  # noqa: S608  # the test's own


async def message_of(database: Database, name: str) -> pb.Session:
    async with database.transaction() as tx:
        row = await tx.execute(text("SELECT id FROM session WHERE name = :name"), {"name": name})
        session_id: uuid.UUID = row.scalar_one()
        found = await sessions.read(tx, [session_id])
    return session_message(found[session_id], (), view=SpecView.FULL)


async def running(database: Database, name: str) -> bool:
    return await count(database, "name = :name AND state = 'RUNNING'", name=name) == 1


async def ended(database: Database, name: str) -> bool:
    return await count(database, "name = :name AND state = 'TERMINATED'", name=name) == 1


async def test_sessions_of_another_version_cost_themselves_only(database: Database) -> None:
    agent = FakeAgent("n1")
    names = {kind: f"before-{number}" for number, kind in enumerate(SPECS)}
    before = {kind: await submit(database, "ann", name) for kind, name in names.items()}
    async with leading(database, agent):
        for name in names.values():
            await eventually(partial(running, database, name))
        for number, kind in enumerate(SPECS):
            await damage(database, names[kind], f"spec = {SPECS[kind]}")
            await submit(database, "ann", f"waiting-{number}", hold=True)
            await damage(database, f"waiting-{number}", f"hold = FALSE, spec = {SPECS[kind]}")
        await submit(database, "ann", "other")
        await eventually(partial(running, database, "other"))
        for name in names.values():
            assert await running(database, name), name
    # Another leader, to which the agent sends all that it has.
    agent.wanted = {}
    async with leading(database, agent):
        await submit(database, "ann", "another")
        await eventually(partial(running, database, "another"))
        for kind, session_id in before.items():
            assert await running(database, names[kind]), kind
            assert f"{session_id}.1" not in agent.removed, kind
            assert agent.statuses[f"{session_id}.1"].state == agent_pb.ATTEMPT_STATE_RUNNING, kind
            shown = await message_of(database, names[kind])
            assert [condition.type for condition in shown.conditions] == ["UNREADABLE"], kind
            assert (shown.id, shown.owner, shown.state) == (str(session_id), "ann", pb.SESSION_STATE_RUNNING), kind
        async with database.transaction() as tx:
            page, _ = await listing.list_page(
                tx,
                Visibility(everything=True, owner=""),
                terms=(),
                ended=True,
                newest_first=False,
                after=None,
                limit=100,
            )
        listed = {session_message(row, (), view=SpecView.BASIC).id for row in page}
        assert set(map(str, before.values())) <= listed
        assert len(listed) == 2 * len(SPECS) + 2
        # They end when that is requested.
        for kind in (
            "future member",
            "future member inside",
            "no kernel",
            "numbers for texts",
            "texts for numbers",
        ):
            async with database.transaction() as tx:
                assert await terminate(tx, before[kind], by="ann", force=False)
            await eventually(partial(ended, database, names[kind]))


async def test_one_that_cannot_be_moved_says_so(database: Database) -> None:
    session_id = await submit(database, "ann", "one")
    await damage(database, "one", "state = 'HIBERNATED'")
    with pytest.raises(UnreadableSessionError):
        async with database.transaction() as tx:
            await terminate(tx, session_id, by="ann", force=False)
    assert (await message_of(database, "one")).state == pb.SESSION_STATE_UNSPECIFIED


async def test_what_an_agent_was_sent_of_it_stays(database: Database) -> None:
    agent = FakeAgent("n1")
    await submit(database, "ann", "one")
    async with leading(database, agent):
        await eventually(partial(running, database, "one"))
        before = await read_desired(database, "n1", SessionSecrets(bytes(32)))
        sent = SentState(before)
        await damage(database, "one", f"spec = {SPECS['future member']}")
        now = await read_desired(database, "n1", SessionSecrets(bytes(32)))
        assert len(now.unreadable) == 1
        assert not sent.advance(now, None)
        await damage(database, "one", """spec = (spec - 'hibernates') || '{"version": 1}'""")
        assert not sent.advance(await read_desired(database, "n1", SessionSecrets(bytes(32))), None)


AGENTS = {
    "no address": "underlay_address = 'not-an-address'",
    "future backends": "backends = '7'",
    "capacity of a future version": """capacity = '{"cpu": 1.5e30}'""",
    "future state": "state = 'HIBERNATING'",
    "conditions": """found_conditions = '[{"kind": 7}]'""",
}


async def test_agents_of_another_version_cost_themselves_only(database: Database) -> None:
    bad = {kind: f"bad-{number}" for number, kind in enumerate(AGENTS)}
    async with leading(database, FakeAgent("good")):
        async with database.transaction() as tx:
            for kind, name in bad.items():
                await tx.execute(
                    text(f"""
                        INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture, software_version,
                            underlay_address, underlay_mtu, boot_id, version, capacity, backends)
                        VALUES ('{name}', 'default', 'ALIVE', FALSE, FALSE, '', '', '', '', '', 0, '', 1, '{{"cpu": 1000}}', '["process"]');
                        UPDATE agent SET {AGENTS[kind]} WHERE id = '{name}'
                    """)  # noqa: S608  # the test's own
                )
        await submit(database, "ann", "one", agents=("good",), agents_strict=True)
        await submit(database, "ann", "two", single_node=False, cluster_size=2)
        await eventually(partial(running, database, "one"))
        await eventually(partial(running, database, "two"))
        for kind, name in bad.items():
            async with database.transaction() as tx:
                row = await agents.get(tx, name)
                load = await agents.read_loads(tx, [name])
            assert row is not None
            shown = agent_message(row, load[name])
            assert shown.id == name
            if kind != "future state":
                unreadable = [fleet_pb.AGENT_CONDITION_TYPE_UNREADABLE]
                assert [condition.type for condition in shown.conditions] == unreadable, kind


CONDITIONS = ("7", "'x'", '["x", 7]', '[{"type": ["x"], "reason": 7}]', '{"type": "x"}')


async def test_an_agent_is_heard_whatever_is_stored_of_its_conditions(database: Database) -> None:
    columns = ("reported_conditions", "found_conditions")
    heard = {f"n{number}": case for number, case in enumerate(itertools.product(columns, CONDITIONS))}
    speaking = [FakeAgent(name) for name in heard]
    async with leading(database, *speaking):
        for name in heard:
            await submit(database, "ann", f"first-{name}", agents=(name,), agents_strict=True)
        for name in heard:
            await eventually(partial(running, database, f"first-{name}"))
    async with database.transaction() as tx:
        for name, (column, stored) in heard.items():
            change = f"UPDATE agent SET {column} = CAST(:stored AS jsonb) WHERE id = :id"  # noqa: S608  # the test's own
            await tx.execute(text(change), {"stored": stored.replace("'", '"'), "id": name})
    async with leading(database, *speaking):
        for name in heard:
            await submit(database, "ann", f"last-{name}", agents=(name,), agents_strict=True)
        for name in heard:
            await eventually(partial(running, database, f"last-{name}"))


@pytest.mark.parametrize("change", ["goal = 'HIBERNATED'", "observed = 'HIBERNATED'"])
async def test_an_attempt_of_another_version_costs_no_other_of_its_agent(database: Database, change: str) -> None:
    agent = FakeAgent("n1")
    odd = await submit(database, "ann", "odd")
    async with leading(database, agent):
        await eventually(partial(running, database, "odd"))
    async with database.transaction() as tx:
        await tx.execute(text(f"UPDATE attempt SET {change}"))  # noqa: S608  # the test's own
    agent.dialled = 0
    async with leading(database, agent):
        await submit(database, "ann", "other")
        await eventually(partial(running, database, "other"))
        assert agent.dialled == 1
        assert f"{odd}.1" not in agent.removed
        assert agent.statuses[f"{odd}.1"].state == agent_pb.ATTEMPT_STATE_RUNNING


WAITING = {
    "a number of failed agents": "failed_agents = '7'",
    "failed agents of another kind": """failed_agents = '[["n1"]]'""",
    "agents that are none": "agents = '{NULL}'",
    "a nomination of another kind": """nomination = '{"agents": [7, []], "until": 4e9}'""",
}


async def test_waiting_sessions_of_another_version_hold_up_no_other(database: Database) -> None:
    async with leading(database, FakeAgent("n1")):
        for number, change in enumerate(WAITING.values()):
            await submit(database, "ann", f"odd-{number}", agents=("n2",), agents_strict=True)
            await damage(database, f"odd-{number}", change)
            await submit(database, "ann", f"other-{number}")
            await eventually(partial(running, database, f"other-{number}"))


async def test_options_of_another_version_cost_their_group_only(database: Database) -> None:
    stored = ("[]", "7", '{"max-tries-before-skip": 7}', '{"max-tries-before-skip": ["x"]}')
    async with leading(database, FakeAgent("n1")):
        for number, options in enumerate(stored):
            async with database.transaction() as tx:
                await tx.execute(
                    text("""
                        INSERT INTO resource_group (name, session_strategy, agent_strategy, options, start_timeout_seconds, version)
                        VALUES (:name, 'fifo', 'concentrated', CAST(:options AS jsonb), 600, 1)
                    """),
                    {"name": f"other-{number}", "options": options},
                )
            await submit(database, "ann", f"lost-{number}", resource_group=f"other-{number}")
            for place in range(3):
                await submit(database, "ann", f"s{number}-{place}")
                await eventually(partial(running, database, f"s{number}-{place}"))
        assert await count(database, "name LIKE 'lost-%' AND state = 'PENDING'") == len(stored)


async def test_a_group_of_another_version_costs_itself_only(database: Database) -> None:
    good = FakeAgent("good")
    async with leading(database, good):
        async with database.transaction() as tx:
            await tx.execute(
                text("""
                    INSERT INTO resource_group (name, session_strategy, agent_strategy, options, idle_policy, start_timeout_seconds, version)
                    VALUES ('other', 'auction', 'teleport', '{"pending-timeout-seconds": "soon"}', '{"exempt": ["DREAMS"]}', 600, 1)
                """)
            )
        await submit(database, "ann", "lost", resource_group="other")
        for number in range(3):
            await submit(database, "ann", f"s{number}")
            await eventually(partial(running, database, f"s{number}"))
        assert await count(database, "name = 'lost' AND state = 'PENDING'") == 1


async def test_documents_of_another_version_cost_their_part_of_a_group_only(database: Database) -> None:
    roots = [{"path": "/data", "writable": True, "projects": []}, {"path": "/new", "owners": ["ann"]}]
    async with database.transaction() as tx:
        await tx.execute(
            text("UPDATE resource_group SET idle_policy = :policy, mount_roots = :roots"),
            {"policy": Jsonb({"exempt": ["DREAMS"]}), "roots": Jsonb(roots)},
        )
        (group,) = await groups.list_page(tx, after="", limit=9)
        granted = await groups.read_mount_roots(tx, ["default"])
    shown = group_message(group)
    assert [root.path for root in shown.mount_roots] == ["/data"]
    assert not shown.HasField("idle_policy")
    assert granted == {"default": [MountRoot("/data", writable=True)]}


async def test_a_session_that_cannot_be_moved_holds_up_no_bound_of_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up = SessionMachine.give_up_waiting
    odd = await submit(database, "ann", "odd")
    await submit(database, "ann", "sound")

    def fail_for_one(machine: SessionMachine) -> None:
        if machine.session.id == odd:
            raise ValueError("odd")
        give_up(machine)

    monkeypatch.setattr(SessionMachine, "give_up_waiting", fail_for_one)
    async with database.transaction() as tx:
        await tx.execute(text("""UPDATE resource_group SET options = '{"pending-timeout-seconds": "1"}'"""))
        await tx.execute(text("UPDATE session SET state_time = now() - interval '1 hour'"))
    await deadlines.enforce(database, TERM, lambda _: None)
    assert await states(database) == {"odd": "PENDING", "sound": "CANCELLED"}


@pytest.mark.parametrize("lost", ["TRUE", "local_rank = 1"], ids=["all", "one"])
async def test_a_waiting_session_without_its_kernels_is_not_placed_and_can_be_ended(
    database: Database, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd = await submit(database, "ann", "odd", cluster_size=2)
    async with database.transaction() as tx:
        await tx.execute(text(f"DELETE FROM kernel WHERE session_id = :id AND {lost}"), {"id": odd})  # noqa: S608  # the test's own
    async with leading(database, FakeAgent("n1")):
        await submit(database, "ann", "other")
        await eventually(partial(running, database, "other"))
        assert await states(database) == {"odd": "PENDING", "other": "RUNNING"}
        assert f"session {odd} cannot be read" in caplog.text
        async with database.transaction() as tx:
            found, kernels = await sessions.read(tx, [odd]), await sessions.read_kernels(tx, [odd])
        shown = session_message(found[odd], kernels.get(odd, ()), view=SpecView.FULL)
        assert [condition.type for condition in shown.conditions] == ["UNREADABLE"]
        assert (shown.state, shown.spec.name) == (pb.SESSION_STATE_PENDING, "odd")
        async with database.transaction() as tx:
            assert await terminate(tx, odd, by="ann", force=False)
        assert (await states(database))["odd"] == "CANCELLED"


async def test_a_session_without_kernels_waits_no_longer_than_its_group_allows(database: Database) -> None:
    await submit(database, "ann", "odd")
    async with database.transaction() as tx:
        await tx.execute(text("DELETE FROM kernel"))
        await tx.execute(text("""UPDATE resource_group SET options = '{"pending-timeout-seconds": "1"}'"""))
        await tx.execute(text("UPDATE session SET state_time = now() - interval '1 hour'"))
    await deadlines.enforce(database, TERM, lambda _: None)
    assert await states(database) == {"odd": "CANCELLED"}


async def test_a_session_that_runs_without_kernels_ends_when_that_is_requested(database: Database) -> None:
    agent = FakeAgent("n1")
    odd = await submit(database, "ann", "odd")
    async with leading(database, agent):
        await eventually(partial(running, database, "odd"))
        async with database.transaction() as tx:
            await tx.execute(text("DELETE FROM kernel"))
        async with database.transaction() as tx:
            assert await terminate(tx, odd, by="ann", force=False)
        await eventually(partial(ended, database, "odd"))
        await submit(database, "ann", "other")
        await eventually(partial(running, database, "other"))
