"""Previews the scheduling of a session, computed from the database by any replica; nothing is written."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.domain.scheduling.records import PendingSession
from retinue.manager.domain.session.explanation import StoredExplanation
from retinue.manager.domain.session.image_registries import denied_image
from retinue.manager.domain.session.mounts import NotGranted, granted
from retinue.manager.domain.session.runtime_features import needed, offered
from retinue.manager.domain.session.spec_columns import KernelColumns, PlacementColumns, members
from retinue.manager.domain.session.states import SessionType
from retinue.manager.scheduler.core.alternative_groups import groups_with_room
from retinue.manager.scheduler.core.cache import Cache, Limit
from retinue.manager.scheduler.core.snapshot import (
    PastUsage,
    Snapshot,
    build_running,
    endpoints_of,
    snapshot_of,
    stored_explanation,
)
from retinue.manager.scheduling.capacity import CapacityView
from retinue.manager.scheduling.columns import Running
from retinue.manager.scheduling.custom import Advice
from retinue.manager.scheduling.reservation import reserve
from retinue.manager.scheduling.scheduling_pass import run_pass
from retinue.manager.scheduling.strategies import FAIR_SHARE, Settings, validate_policy
from retinue.manager.scheduling.view import View
from retinue.manager.scheduling.what_if import Change, WhatIf, waiting_order, what_if
from retinue.manager.store.accounts import accounts
from retinue.manager.store.fleet import groups
from retinue.manager.store.placement import changes, placements, usage
from retinue.manager.store.sessions import sessions

if TYPE_CHECKING:
    import uuid

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.new_session import NewSession
    from retinue.manager.domain.session.spec import MountSpec
    from retinue.manager.scheduling.placement import Placer
    from retinue.manager.session.drafts import Draft
    from retinue.manager.store.sessions.session_records import SessionRecord

# Waiting sessions that are put into order to say where one of them is.
MAX_ORDERED = 5_000
_NOT_ASKED = "it is not asked for a preview"


@dataclass(frozen=True, slots=True)
class Preview:
    """The agents of a session's kernels by hostname, or why it would wait: reason, message, and what is kept with them;
    with what it could start, and other groups that have room for it now, if that was asked.
    """

    agents: Mapping[str, str]
    reason: str = ""
    message: str = ""
    explanation: StoredExplanation | None = None
    changes: Sequence[Change] = ()
    alternative_groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """The outlook of a waiting session: with what it could start and in how many seconds at the latest running sessions
    make room for it, neither of them unless it waits for room, and other groups that have room for it now; and whether
    others may go ahead of it for as long as they find room.
    """

    what_if: WhatIf
    after: float | None
    alternative_groups: Sequence[str]
    may_be_passed: bool


@dataclass(frozen=True, slots=True)
class _Reading:
    policy: Policy
    settings: Settings
    round_robin_cursor: str
    snapshot: Snapshot
    running: Running
    cache: Cache
    now: float


async def previews(tx: AsyncSession, drafts: Sequence[Draft]) -> dict[uuid.UUID, Preview]:
    """Returns what the next pass of each group would make of sessions that are not there yet, by their ids."""
    by_group: dict[str, list[Draft]] = {}
    for draft in drafts:
        by_group.setdefault(draft.session.resource_group, []).append(draft)
    found: dict[uuid.UUID, Preview] = {}
    for name, of_group in by_group.items():
        reading = await _read(tx, name, [_pending(draft) for draft in of_group])
        if reading is not None:
            found |= await asyncio.to_thread(_decide, reading, {draft.session.id for draft in of_group})
    return found


async def preview_one(tx: AsyncSession, draft: Draft) -> Preview:
    """Returns what the next pass would make of a session that is not there yet, and what would start it."""
    name = draft.session.resource_group
    waiting = _pending(draft)
    reading = await _read(tx, name, [waiting])
    if reading is None:
        return Preview({})
    found = (await asyncio.to_thread(_decide, reading, {waiting.id}))[waiting.id]
    explanation = found.explanation
    if explanation is None or explanation.tier is Tier.POLICY:
        return found
    policies = {group.name: group for group in await changes.read_groups(tx)}
    allowed = await _allowed(tx, policies.keys(), draft.session, draft.spec.mounts, draft.spec.images)
    reading.cache.groups = policies
    return await asyncio.to_thread(_add_changes, reading, replace(waiting, created=reading.now), found, allowed)


async def outlook(tx: AsyncSession, session: SessionRecord) -> Outlook | None:
    """Returns what a session lacks at this moment; None when it does not wait."""
    reading = await _read(tx, session.resource_group, [], only=session.id)
    waiting = await changes.read_waiting(tx, [session.id])
    if reading is None or not len(reading.snapshot.ids) or not waiting:
        return None
    policies = {group.name: group for group in await changes.read_groups(tx)}
    allowed = await _allowed(tx, policies.keys(), session, session.known_spec.mounts, session.known_spec.images)
    reading.cache.groups = policies
    behind = session.explanation.tier is Tier.POLICY
    return await asyncio.to_thread(_look, reading, waiting[0], allowed, behind=behind)


async def _allowed(
    tx: AsyncSession,
    names: Collection[str],
    session: NewSession | SessionRecord,
    mounts: Sequence[MountSpec],
    images: Sequence[str],
) -> Sequence[str]:
    """Returns those of the groups that grant the mounts and images of a session."""
    allowed = set(names)
    if mounts:
        roots = await groups.read_mount_roots(tx, names)
        numbers = await accounts.file_owner(tx, session.owner)
        allowed = {
            name
            for name, of_group in roots.items()
            if not isinstance(granted(mounts, of_group, session.project, session.owner, numbers), NotGranted)
        }
    if images:
        registries = await groups.read_image_registries(tx, names)
        allowed = {name for name in allowed if not denied_image(images, registries[name])}
    return sorted(allowed)


async def queue_position(tx: AsyncSession, name: str, session_id: uuid.UUID) -> int:
    """Returns the position of a waiting session in the order in which its group's strategy would have all that waits,
    from 1; 0 where it has none.

    That is where a strategy of others decides, and where more wait than are put into order for one question.
    """
    if await sessions.queue_length(tx, name) > MAX_ORDERED:
        return 0
    reading = await _read(tx, name, [])
    return 0 if reading is None else await asyncio.to_thread(_position, reading, session_id)


def _position(reading: _Reading, session_id: uuid.UUID) -> int:
    snapshot = reading.snapshot
    order = waiting_order(snapshot.agents, snapshot.owners, snapshot.queue, reading.settings)
    ids = snapshot.ids.tolist()
    return (
        0 if order is None else next((position for position, row in enumerate(order, 1) if ids[row] == session_id), 0)
    )


def _decide(reading: _Reading, wanted: set[uuid.UUID]) -> dict[uuid.UUID, Preview]:
    snapshot = reading.snapshot
    decisions = run_pass(
        snapshot.agents,
        snapshot.owners,
        snapshot.queue,
        reading.policy,
        reading.round_robin_cursor,
        running=reading.running,
        advice=Advice(order_failure=_NOT_ASKED, placements_failure=_NOT_ASKED),
    )
    found = {}
    for row, session_id in enumerate(snapshot.ids.tolist()):
        if session_id not in wanted:
            continue
        hostnames = snapshot.hostname_sets[int(snapshot.hostnames[row])]
        why = decisions.explain(row)
        if why is None:
            kernels = slice(snapshot.queue.offsets[row], snapshot.queue.offsets[row + 1])
            agents = [snapshot.agents.ids[agent] for agent in decisions.kernel_agents[kernels].tolist()]
            found[session_id] = Preview(dict(zip(hostnames, agents, strict=True)))
        else:
            found[session_id] = Preview({}, why.code, why.message, stored_explanation(why, hostnames))
    return found


def _add_changes(reading: _Reading, waiting: PendingSession, found: Preview, others: Sequence[str]) -> Preview:
    snapshot = reading.snapshot
    hints = what_if(_situation(reading), snapshot.ids.tolist().index(waiting.id))
    alternative_groups = groups_with_room(reading.cache, waiting, others, reading.now)
    return replace(found, changes=hints.changes, alternative_groups=alternative_groups)


def _situation(reading: _Reading) -> CapacityView:
    snapshot, settings = reading.snapshot, reading.settings
    view = View(snapshot.agents, snapshot.queue, snapshot.queue.orders[:0], settings, reading.round_robin_cursor)
    placer: Placer = view.placer
    return CapacityView(snapshot.agents, snapshot.queue, settings, reading.round_robin_cursor, reading.running, placer)


def _look(reading: _Reading, waiting: PendingSession, others: Sequence[str], *, behind: bool) -> Outlook:
    """`behind` says that a policy holds it back, as the last pass found it: behind another session, for instance."""
    situation = _situation(reading)
    hints = what_if(situation, 0)
    alone = _decide(reading, {waiting.id})[waiting.id].explanation
    may_be_passed = False
    if alone is None or behind or alone.tier is Tier.POLICY or 0 in reading.snapshot.queue.held_back:
        # It waits for its turn, a release, a time, a quota, …: neither another size nor the end of others starts it.
        hints, after = hints.without_changes(), None
    else:
        may_be_passed = alone.tier is Tier.CAPACITY and not reading.settings.holds_back_others
        reservation = reserve(situation, 0)
        after = None if reservation is None or math.isinf(reservation.after) else reservation.after
    alternative_groups = groups_with_room(reading.cache, waiting, others, reading.now)
    return Outlook(hints, after, alternative_groups, may_be_passed)


async def _read(
    tx: AsyncSession, name: str, extra: Sequence[PendingSession], *, only: uuid.UUID | None = None
) -> _Reading | None:
    """Returns a group as a pass would read it now: with all that waits and `extra` sessions behind it or,
    with `only`, with that one session.
    """
    found = await changes.read_groups(tx, [name])
    if not found:
        return None
    group = found[0]
    policy = group.policy()
    settings = validate_policy(policy)
    cache = Cache.empty(offered, needed)
    cache.groups = {name: group}
    for row in await changes.read_agents(tx):
        cache.put_agent(row)
    for quota in await changes.read_quotas(tx):
        cache.put_quota((quota.kind, quota.name), Limit.of(quota))
    for claim in await changes.read_claims(tx):
        cache.add_claim(*claim)
    for account, number in await changes.read_placed(tx):
        cache.add_placed(account, number)
    for agent, number in await changes.read_kernels(tx):
        cache.add_kernels(agent, number)
    last = 0
    if only is not None:
        cache.put_waiting(await changes.read_waiting(tx, [only]))
    else:
        async for page in changes.read_all_waiting(tx, name):
            await asyncio.to_thread(cache.put_waiting, page)
            last = page[-1].sequence
    now = await changes.read_now(tx)
    cache.put_waiting(replace(row, sequence=last + number, created=now) for number, row in enumerate(extra, 1))
    past = None
    if settings.session_strategy == FAIR_SHARE:
        owners = sorted({account.owner for account in cache.accounts.names})
        used = await usage.read_decayed(
            tx, name, owners, half_life_days=settings.half_life_days, look_back_days=settings.look_back_days
        )
        past = PastUsage(used, settings.look_back_days, settings.usage_weights)
    endpoints = endpoints_of(cache, name)
    replicas = await changes.read_replicas(tx, endpoints) if endpoints else {}
    snapshot = snapshot_of(cache, name, now, past, replicas=replicas)
    min_runtime = settings.preemption_min_runtime_seconds
    placed = await placements.read_running(tx, name, min_runtime=min_runtime, finishing=settings.reserves)
    running = build_running(placed, snapshot.agents)
    return _Reading(policy, settings, group.round_robin_cursor, snapshot, running, cache, now)


def _pending(draft: Draft) -> PendingSession:
    """Returns a session that is not stored yet as one that waits."""
    session, spec = draft.session, draft.spec
    # As they would be rows.
    kernels = [{**members(kernel), **members(KernelColumns.of(spec, kernel.role))} for kernel in draft.kernels]
    return PendingSession(
        **members(PlacementColumns.of(spec)),
        id=session.id,
        owner=session.owner,
        project=session.project,
        resource_group=session.resource_group,
        system=spec.type is SessionType.SYSTEM,
        priority=session.priority,
        sequence=0,
        cluster_mode=session.cluster_mode,
        cluster_size=len(draft.kernels),
        endpoint=session.endpoint,
        kernels=orjson.dumps(kernels).decode(),
        open_dependencies=len(draft.parents),
        waits_for=[*spec.depends_on, *spec.runs_after_failure, *spec.runs_after][:3],
        created=0.0,
    )
