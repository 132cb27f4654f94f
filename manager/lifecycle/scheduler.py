"""The scheduler's shell: reads what a pass needs, runs it, commits its placements at once, and tells why the rest waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlmodel.ext.asyncio.session import AsyncSession

from manager.lifecycle.addressing import AddressSpaceExhaustedError, SubnetPool, choose_vni, inner_mtu, place
from manager.lifecycle.desires import Concerned
from manager.lifecycle.external_strategies import ExternalStrategies
from manager.lifecycle.preemptions import preempt
from manager.lifecycle.quotas import words
from manager.lifecycle.snapshot import Limit, PastUsage, Snapshot, Waiting, build, build_running, endpoint_of
from manager.scheduling.amounts import format_amount
from manager.scheduling.columns import Explanation, Policy, Verdict
from manager.scheduling.scheduling_pass import Decisions, run_pass
from manager.scheduling.strategies import FAIR_SHARE, OFF, validate_policy
from manager.store import journal, leadership, placements, quotas, sessions, shares, usage
from manager.store.database import Database
from manager.store.quotas import PROJECT, RESOURCE_GROUP, USER

_log = logging.getLogger(__name__)

# A waiting session that nothing wakes is looked at again after this time: backoffs end by themselves.
_LONGEST_SLEEP_SECONDS = 1.0


class Scheduler:
    """Runs passes whenever something may have changed. `committed` is told which agents have something new to do."""

    def __init__(self, database: Database, term: int, committed: Callable[[Concerned], None]) -> None:
        self._database = database
        self._term = term
        self._committed = committed
        self._changed = asyncio.Event()
        self._random = random.SystemRandom()
        self._strategies = ExternalStrategies()

    def wake(self) -> None:
        """Sessions, capacity or policies may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Passes until cancelled."""
        try:
            while True:
                self._changed.clear()
                waiting = await self.run_once()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LONGEST_SLEEP_SECONDS if waiting else None):
                        await self._changed.wait()
        finally:
            await self._strategies.close()

    async def run_once(self) -> bool:
        """One pass of every group that has something waiting; returns whether there was any."""
        async with self._database.transaction() as tx:
            groups = await placements.read_groups(tx)
        for group in groups:
            await self._pass(group)
        return bool(groups)

    async def _pass(self, group: Mapping[str, Any]) -> None:
        policy = Policy(group["session_strategy"], group["agent_strategy"], group["options"])
        settings = validate_policy(policy)
        async with self._database.transaction() as tx:
            agent_rows = await placements.read_agents(tx, group["name"])
            held = await placements.read_held(tx, group["name"])
            queue_rows = await placements.read_queue(tx, group["name"])
            past = None
            if settings.session_strategy == FAIR_SHARE and queue_rows:
                used = await usage.read_decayed(
                    tx,
                    group["name"],
                    sorted({row["owner"] for row in queue_rows}),
                    half_life_days=settings.half_life_days,
                    look_back_days=settings.look_back_days,
                )
                past = PastUsage(used, settings.look_back_days, settings.usage_weights)
            limits = await _read_limits(tx, group["name"], queue_rows)
            endpoints = {endpoint for row in queue_rows if (endpoint := endpoint_of(row)) is not None}
            replicas = await placements.read_replicas(tx, endpoints) if endpoints else {}
            running_rows = None
            if settings.reserves or settings.preemption != OFF:
                min_runtime = settings.preemption_min_runtime_seconds
                running_rows = await placements.read_running(tx, group["name"], min_runtime=min_runtime)
        if not queue_rows:
            return
        snapshot = build(
            agent_rows, held, queue_rows, group["owner_weights"], past=past, limits=limits, replicas=replicas
        )
        advice = await self._strategies.ask(group["name"], settings, snapshot, queue_rows)
        running = None if running_rows is None else build_running(running_rows, snapshot.agents)
        # Pure computation of up to a second: the loop must go on meanwhile.
        decisions = await asyncio.to_thread(
            run_pass,
            snapshot.agents,
            snapshot.owners,
            snapshot.queue,
            policy,
            group["rotation"],
            running=running,
            advice=advice,
        )
        for note in decisions.notes:
            _log.warning("group %s: %s", group["name"], note)
        if len(decisions.sessions):
            concerned = await self._commit(group["name"], snapshot, decisions)
            if concerned:
                self._committed(concerned)
        if decisions.preemptions and running is not None:
            self._committed(await preempt(self._database, self._term, settings, snapshot, running, decisions))
        await self._note(snapshot, decisions)

    async def _commit(self, group: str, snapshot: Snapshot, decisions: Decisions) -> Concerned:
        """Writes the placements whose session still waits and whose agents still have room; the others are left for the next pass."""
        chosen = {snapshot.waiting[row].id: _agents_of(snapshot, decisions, int(row)) for row in decisions.sessions}
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            waiting = await placements.lock_waiting(tx, list(chosen))
            free = await placements.lock_free(tx, sorted({agent for agents in chosen.values() for agent in agents}))
            kept = []
            for row in decisions.sessions:
                session = snapshot.waiting[row]
                if session.id in waiting and _take(free, session, chosen[session.id]):
                    kept.append(session)
            if not kept:
                return {}
            rows = await self._rows(tx, group, kept, chosen)
            epochs = await placements.place(tx, term=self._term, **rows)
            await placements.keep_rotation(tx, group, decisions.rotation)
            await shares.refresh(tx, sorted({(group, session.owner) for session in kept}))
            addresses = {kernel["id"]: kernel["address"] for kernel in rows["kernels"]}
            networks = {session["id"]: session["network"] for session in rows["sessions"]}
            entries = []
            for session in kept:
                facts = {"session_id": session.id, "owner": session.owner, "project": waiting[session.id]["project"]}
                for kernel_id, hostname, agent in zip(
                    session.kernel_ids, session.hostnames, chosen[session.id], strict=True
                ):
                    payload = {
                        "kernel_id": str(kernel_id),
                        "hostname": hostname,
                        "from": "PENDING",
                        "to": "SCHEDULED",
                        "agent": agent,
                        "epoch": epochs[kernel_id],
                        "address": addresses[kernel_id],
                        "exit_code": None,
                        "reason": "",
                    }
                    entries.append(journal.Entry(**facts, kind="KERNEL_MOVED", payload=payload))
                payload = {
                    "from": "PENDING",
                    "to": "SCHEDULED",
                    "result": "UNDEFINED",
                    "exit_code": None,
                    "reason": "",
                    "message": "",
                    "network": networks[session.id],
                }
                entries.append(journal.Entry(**facts, kind="SESSION_MOVED", payload=payload))
            await journal.append(tx, entries)
        concerned: dict[str, set[uuid.UUID]] = {}
        for session in kept:
            for agent in chosen[session.id]:
                concerned.setdefault(agent, set()).add(session.id)
        return concerned

    async def _rows(
        self, tx: AsyncSession, group: str, kept: list[Waiting], chosen: Mapping[uuid.UUID, list[str]]
    ) -> dict[str, list[dict[str, Any]]]:
        """What to write for placed sessions: kernels with addresses, networks of cluster sessions, and the sessions' kind of network."""
        rows: dict[str, list[dict[str, Any]]] = {"kernels": [], "networks": [], "sessions": []}
        clusters = [session for session in kept if len(session.kernel_ids) > 1]
        pool, vnis, underlays = SubnetPool(()), set[int](), dict[str, tuple[str, int]]()
        if clusters:
            subnets, vnis = await placements.read_taken_addresses(tx)
            pool = SubnetPool(subnets)
            underlays = await placements.read_underlays(
                tx, sorted({agent for session in clusters for agent in chosen[session.id]})
            )
        for session in list(kept):
            agents = chosen[session.id]
            sites = sorted(set(agents))
            subnet, network = "", ""
            if len(agents) > 1:
                try:
                    subnet = pool.take(len(agents))
                    vni = choose_vni(vnis, self._random) if len(sites) > 1 else 0
                except AddressSpaceExhaustedError as error:
                    _log.error("session %s cannot be placed: %s", session.id, error)
                    kept.remove(session)
                    continue
                vnis.add(vni)
                network = "VXLAN" if vni else "BRIDGE"
                mtu = inner_mtu([underlays[agent] for agent in sites], vxlan=bool(vni))
                rows["networks"].append(
                    {"session_id": session.id, "vni": vni, "subnet": subnet, "mtu": mtu, "agents": sites}
                )
            rows["sessions"].append({"id": session.id, "network": network})
            for rank, (kernel_id, agent) in enumerate(zip(session.kernel_ids, agents, strict=True)):
                rows["kernels"].append(
                    {
                        "id": kernel_id,
                        "session_id": session.id,
                        "agent_id": agent,
                        "address": place(subnet, rank).address if subnet else "",
                        "slots": session.slots[rank],
                        "owner": session.owner,
                        "resource_group": group,
                    }
                )
        return rows

    async def _note(self, snapshot: Snapshot, decisions: Decisions) -> None:
        """Writes the reasons that are new; a change of the reason itself is an event, a change of amounts is not."""
        rows = []
        for row, session in enumerate(snapshot.waiting):
            why = decisions.explain(row)
            if why is None:
                continue
            tried = decisions.verdicts[row] == Verdict.NO_ROOM
            if tried or (why.code, why.message) != (session.reason, session.message):
                rows.append(
                    {
                        "id": session.id,
                        "reason": why.code,
                        "message": why.message,
                        "explanation": _stored(session, why),
                        "tried": int(tried),
                    }
                )
        if not rows:
            return
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            changed = await sessions.note(tx, rows)
            await journal.append(
                tx,
                [
                    journal.Entry(
                        session_id=row["id"],
                        owner=row["owner"],
                        project=row["project"],
                        kind="NOTED",
                        payload={"reason": row["reason"], "message": row["message"], "conditions": []},
                    )
                    for row in changed
                ],
            )


async def _read_limits(tx: AsyncSession, group: str, queue_rows: Sequence[Mapping[str, Any]]) -> list[Limit]:
    """The quotas that hold for what waits in a group, with what counts against them now. Only this leader places, so that stays true."""
    subjects = {
        (RESOURCE_GROUP, group),
        *((USER, row["owner"]) for row in queue_rows),
        *((PROJECT, row["project"]) for row in queue_rows),
    }
    found = [quota for quota in await quotas.read(tx, subjects) if quota.slots or quota.max_sessions is not None]
    use = await quotas.read_use(tx, [(quota.kind, quota.name) for quota in found])
    return [
        Limit(
            subject=(quota.kind, quota.name),
            words=words((quota.kind, quota.name)),
            slots=quota.slots,
            max_sessions=quota.max_sessions,
            held=use[quota.kind, quota.name].slots,
            sessions=use[quota.kind, quota.name].sessions,
        )
        for quota in found
    ]


def _agents_of(snapshot: Snapshot, decisions: Decisions, row: int) -> list[str]:
    begin, end = snapshot.queue.offsets[row], snapshot.queue.offsets[row + 1]
    return [snapshot.agents.ids[int(agent)] for agent in decisions.kernel_agents[begin:end]]


def _take(free: dict[str, dict[str, int]], session: Waiting, agents: list[str]) -> bool:
    """Takes a session's amounts from what is free, or nothing when one of its kernels has no room."""
    wanted: dict[tuple[str, str], int] = {}
    for slots, agent in zip(session.slots, agents, strict=True):
        for slot, amount in slots.items():
            wanted[agent, slot] = wanted.get((agent, slot), 0) + amount
    if any(free.get(agent, {}).get(slot, 0) < amount for (agent, slot), amount in wanted.items()):
        return False
    for (agent, slot), amount in wanted.items():
        free[agent][slot] -= amount
    return True


def _stored(session: Waiting, why: Explanation) -> dict[str, Any]:
    """An explanation as it is kept, with amounts in words: for people."""
    return {
        "tier": why.tier.value,
        "shortfalls": [
            {
                "hostname": "" if shortfall.kernel is None else session.hostnames[shortfall.kernel],
                "agent": shortfall.agent,
                "slot": lack.slot,
                "requested": format_amount(lack.slot, lack.requested),
                "free": format_amount(lack.slot, lack.free),
                "short": format_amount(lack.slot, lack.short),
            }
            for shortfall in why.shortfalls
            for lack in shortfall.lacks[:1]
        ],
    }
