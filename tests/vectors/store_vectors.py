"""Vectors whose answer is in the database: the ledger of claims, dependencies and start times.
Real passes of the scheduler decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from retinue.manager.controllers import deadlines, dependencies
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.domain.session.admission import admit
from retinue.manager.domain.session.features import FEATURES
from retinue.manager.domain.session.spec import MAIN, KernelSpec, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.scheduler.cache_sync import CacheSync
from retinue.manager.scheduler.external.external_strategies import ExternalStrategies
from retinue.manager.scheduler.group_loop import GroupLoop
from retinue.manager.scheduling.strategies import PENDING_TIMEOUT_SECONDS, PREEMPTION
from retinue.manager.session.drafts import Parent, draft
from retinue.manager.session.submit import create_many
from retinue.manager.session.transaction import terminate
from retinue.manager.store.placement import ledger
from retinue.manager.store.postgres.database import Database
from tests.integration.manager.reporting_node import TERM, Node, enrol
from tests.support.stepped_scheduler import SteppedScheduler
from tests.vectors.exceptions import case_exception
from tests.vectors.given import listed
from tests.vectors.scene import Amounts, Scene, exact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

Vector = dict[str, Any]
# Smallest units in one of the vectors; an amount of memory that is not given is less than one of these.
UNITS = {"cpu": 1000, "mem": 1 << 30}


@contextlib.asynccontextmanager
async def node_with(url: str, capacity: Amounts) -> AsyncIterator[Database]:
    """A database with one agent."""
    async with reporting_node(url, capacity) as (database, _):
        yield database


@contextlib.asynccontextmanager
async def reporting_node(url: str, capacity: Amounts) -> AsyncIterator[tuple[Database, Node]]:
    """A database with one agent, and the agent, which takes attempts on by its reports."""
    database = Database(url)
    reports = Reports(database, TERM, lambda _: None)
    task = asyncio.create_task(reports.run())
    try:
        async with database.transaction() as tx:
            await tx.execute(text("UPDATE leadership SET term = :term"), {"term": TERM})
        await enrol(database, ["n0"])
        units = {slot: int(exact(amount) * UNITS[slot]) for slot, amount in capacity.items()}
        node = Node("n0", reports, database, units)
        await node.join()
        yield database, node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.dispose()


async def submit(
    database: Database,
    kernels: Sequence[Amounts],
    parents: Sequence[uuid.UUID] = (),
    earliest_start_time: float | None = None,
    kind: SessionType = SessionType.BATCH,
) -> uuid.UUID:
    """A session of kernels with these amounts, one role for each."""
    session_id = uuid.uuid4()
    roles = [MAIN, *(chr(ord("a") + number) for number in range(len(kernels) - 1))]
    slots = [{slot: f"{exact(amount)}" + ("g" * (slot == "mem")) for slot, amount in of.items()} for of in kernels]
    spec, violations = admit(
        SessionSpec(
            name=f"s-{session_id.hex[:8]}",
            project="default",
            resource_group="default",
            type=kind,
            cluster_size=len(kernels),
            counts=tuple((role, 1) for role in roles),
            kernel=KernelSpec(command=("x",)),
            roles={role: KernelSpec(slots=of) for role, of in zip(roles, slots, strict=True)},
            earliest_start_time=earliest_start_time,
        )
    )
    assert violations == []
    made = draft(session_id, "ann", spec, [Parent(parent, settled=False) for parent in parents])
    async with database.transaction() as tx:
        created, _ = await create_many(tx, [made])
    assert created.keys() == {session_id}
    return session_id


async def schedule(database: Database) -> None:
    """One pass."""
    await SteppedScheduler(database, TERM, lambda _: None).run_once()


async def race(database: Database, sessions: Sequence[uuid.UUID]) -> None:
    """A pass for each of the sessions that knows of no other, all planned before the first of them is committed;
    then they race.
    """

    async def nothing_new() -> None:
        pass

    planned = []
    for session in sessions:
        cache_sync = CacheSync(database, TERM)
        await cache_sync.catch_up()
        for other in set(sessions) - {session}:
            cache_sync.cache.queue.remove(other)
        passes = GroupLoop(
            database,
            TERM,
            cache_sync,
            "default",
            committed=lambda _: None,
            wake=lambda: None,
            catch_up=nothing_new,
            strategies=ExternalStrategies(),
        )
        outcome = await passes.plan()
        assert outcome is not None
        assert outcome.plan is not None
        planned.append((passes, outcome))
    await asyncio.gather(*(passes.commit_outcome(outcome) for passes, outcome in planned))


async def placed(database: Database) -> set[uuid.UUID]:
    async with database.transaction() as tx:
        return set((await tx.execute(text("SELECT id FROM session WHERE state = 'SCHEDULED'"))).scalars())


async def claimed(database: Database) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """What live claims come to: those of sessions that do not run yet, which the vectors call reserved, and those in
    use. The ledger says of them that it is sound: within capacity, and equal to the shares.
    """
    reserved: dict[str, Fraction] = {}
    used: dict[str, Fraction] = {}
    async with database.transaction() as tx:
        rows = await tx.execute(
            text("""
                SELECT claim.slot, session.state IN ('RUNNING', 'TERMINATING'), sum(claim.amount)
                FROM claim JOIN kernel ON kernel.id = claim.kernel_id JOIN session ON session.id = kernel.session_id
                WHERE claim.release_time IS NULL GROUP BY 1, 2
            """)
        )
        # Not of `disk`, whose default every kernel has, and of which the vectors say nothing.
        for slot, runs, amount in rows:
            if slot in UNITS:
                (used if runs else reserved)[slot] = Fraction(int(amount), UNITS[slot])
        found = (await ledger.verify(tx, "")).mismatches
        assert found == [], found
    return reserved, used


async def carry_on(database: Database, node: Node, sessions: Sequence[uuid.UUID], step: str) -> None:
    """Takes sessions that were placed on to where `step` says, by the reports of their node.
    A step that was taken already changes nothing.
    """
    match step.lower():
        case "running" | "start" | "started":
            while await node.step():
                pass
        case "terminated" | "terminate" | "exited" | "finished":
            while await node.step():
                pass
            while await node.step(exit_code=0):
                pass
        case "cancelled" | "cancel" | "release" | "released" | "free":
            for session in sessions:
                async with database.transaction() as tx:
                    await terminate(tx, session, by="ann", force=False)
            while await node.step():
                pass
        case other:
            raise AssertionError(f"nothing takes sessions on to {other!r}")


def sum_of(kernels: Sequence[Amounts], slot: str) -> Fraction:
    return sum((exact(kernel.get(slot, 0)) for kernel in kernels), Fraction(0))


async def reservation(vector: Vector, url: str) -> None:
    given, expected = vector["input"], vector["expected"]
    if "hold" in given:
        hold(vector)
        return
    sessions = given["sessions"] if "sessions" in given else [given["kernels"]]
    async with reporting_node(url, given["agent"]) as (database, node):
        if given.get("agent_used"):
            # In use by a session that was there before.
            await submit(database, [given["agent_used"]])
            await schedule(database)
            await carry_on(database, node, [], "running")
        ids = [await submit(database, kernels) for kernels in sessions]
        if (times := given.get("apply_times", 1)) > 1:
            await race(database, ids * times)
        else:
            await schedule(database)
        winners = await placed(database)
        for step in listed(given.get("then", [])):
            await carry_on(database, node, ids, step)
        held, used = await claimed(database)
    for slot, amount in expected.get("used", {}).items():
        assert used.get(slot, 0) == exact(amount)
    for slot, capacity in given["agent"].items():
        wanted = expected.get("reserved", {}).get(slot)
        if "invariant" in expected:
            # What would be left where one lost race rolls back the whole batch, is given beside it.
            assert expected["invariant"] == "reserved+used never exceeds capacity"
            won = [kernels for session, kernels in zip(ids, sessions, strict=True) if session in winners]
            assert winners
            assert held.get(slot, 0) == sum(sum_of(kernels, slot) for kernels in won)
            assert held.get(slot, 0) + used.get(slot, 0) <= exact(capacity)
        else:
            # A kernel that does not say how much of a slot it asks for has some all the same.
            said = all(slot in kernel for kernels in sessions for kernel in kernels)
            assert wanted is None or held.get(slot, 0) == exact(wanted)
            assert wanted is not None or not said or held.get(slot, 0) == 0


def hold(vector: Vector) -> None:
    """Nominates capacity that others still use to a winner, which gets it at once if no session has to be preempted."""
    given, expected = vector["input"], vector["expected"]
    accepted, now = [], []
    for case in given["cases"]:
        scene = Scene()
        used = {"cpu": exact(case["used_cpu"])}
        # Of the other slots there is enough.
        capacity = {**given["hold"], "cpu": case["capacity_cpu"]}
        scene.add_agent("a", capacity, used)
        if used["cpu"]:
            scene.add_running("victim", 1, 0, {"a": used})
        scene.add_session("winner", "owner", [given["hold"]], priority=5)
        outcome = scene.run(Policy("fifo", "concentrated", {PREEMPTION: "terminate"}))
        now.append("winner" in outcome.agents)
        accepted.append("winner" in outcome.agents or bool(outcome.decisions.preemptions))
    assert accepted == expected["hold_accepted"]
    assert now == expected["admitted_now"]


async def reservation_concurrency(vector: Vector, url: str) -> None:
    given, expected = vector["input"], vector["expected"]
    sessions = [[{"cpu": cpu} for cpu in kernels] for kernels in given["sessions"]]
    async with node_with(url, given["agent"]) as database:
        ids = [await submit(database, kernels) for kernels in sessions]
        await race(database, ids)
        (held, _), winners = await claimed(database), await placed(database)
        async with database.transaction() as tx:
            rows = await tx.execute(text("SELECT DISTINCT session_id FROM kernel WHERE state = 'SCHEDULED'"))
            with_kernels = set(rows.scalars())
    won = [kernels for session, kernels in zip(ids, sessions, strict=True) if session in winners]
    true = {
        f"reserved.cpu <= {given['agent']['cpu']}": held["cpu"] <= exact(given["agent"]["cpu"]),
        "reserved.cpu == sum(cpu of sessions that became SCHEDULED)": held["cpu"]
        == sum(sum_of(kernels, "cpu") for kernels in won),
        "sessions with a SCHEDULED kernel == winners": with_kernels == winners,
    }
    assert winners
    assert all(true[invariant] for invariant in expected["invariants"])
    assert all(true.values())


async def dependency(vector: Vector, url: str) -> None:
    cases = vector["input"]["cases"]
    async with node_with(url, {"cpu": 2 * sum(len(case) + 1 for case in cases), "mem": 1000}) as database:
        children = []
        for case in cases:
            parents = [await submit(database, [{"cpu": 1}]) for _ in case]
            children.append(await submit(database, [{"cpu": 1}], parents))
            async with database.transaction() as tx:
                for parent, (state, result) in zip(parents, case, strict=True):
                    await tx.execute(
                        text("UPDATE session SET state = :state, result = :result WHERE id = :id"),
                        {"id": parent, "state": state, "result": result.upper()},
                    )
        await dependencies.settle(database, TERM, lambda _: None)
        await schedule(database)
        started = await placed(database)
    assert [child in started for child in children] == vector["expected"]["startable"]


async def reserved_batch_start(vector: Vector, url: str) -> None:
    startable, sessions = [], []
    async with node_with(url, {"cpu": 100, "mem": 1000}) as database:
        for case, wanted in zip(vector["input"]["cases"], vector["expected"]["startable"], strict=True):
            kind = SessionType(case["type"].upper())
            earliest_start_time = None if case["offset_seconds"] is None else time.time() + case["offset_seconds"]
            if case_exception("reserved_batch_start", case) is not None:
                spec = SessionSpec("s", "default", "default", kind, earliest_start_time=earliest_start_time)
                assert spec.features() - FEATURES[kind]
                continue
            startable.append(wanted)
            sessions.append(await submit(database, [{"cpu": 1}], earliest_start_time=earliest_start_time, kind=kind))
        await schedule(database)
        started = await placed(database)
    assert [session in started for session in sessions] == startable


async def pending_timeout(vector: Vector, url: str) -> None:
    """Sessions that cannot be placed and have waited for so many days; a second look finds nothing more to cancel."""
    given, expected = vector["input"], vector["expected"]
    seconds = int(exact(given["pending_timeout_days"]) * 86400)
    async with node_with(url, {"cpu": 1, "mem": 1}) as database:
        ids = [await submit(database, [{"cpu": 2}]) for _ in given["ids"]]
        async with database.transaction() as tx:
            await tx.execute(
                text(
                    "UPDATE resource_group SET options = jsonb_build_object(CAST(:option AS text), CAST(:seconds AS text))"
                ),
                {"option": PENDING_TIMEOUT_SECONDS, "seconds": str(seconds)},
            )
            for session, days in zip(ids, given["pending_age_days"], strict=True):
                await tx.execute(
                    text("UPDATE session SET state_time = now() - make_interval(secs => :age) WHERE id = :id"),
                    {"age": float(exact(days) * 86400), "id": session},
                )
        for _ in range(2):
            await deadlines.enforce(database, TERM, lambda _: None)
            async with database.transaction() as tx:
                rows = (await tx.execute(text("SELECT id, state, reason FROM session"))).all()
            by_state = {
                state: [name for name, session in zip(given["ids"], ids, strict=True) if (session, state) in of]
                for of in [{(row.id, row.state) for row in rows}]
                for state in ("PENDING", "CANCELLED")
            }
            waiting = expected["pending_queue"] if "pending_queue" in expected else expected["candidates"]
            assert by_state == {"PENDING": waiting, "CANCELLED": expected["cancelled"]}
            assert {row.reason for row in rows if row.state == "CANCELLED"} <= {"PENDING_TIMEOUT"}


RUNNERS: Mapping[str, Callable[[Vector, str], Awaitable[None]]] = {
    "reservation": reservation,
    "reservation_concurrency": reservation_concurrency,
    "dependency": dependency,
    "reserved_batch_start": reserved_batch_start,
    "pending_timeout": pending_timeout,
}
