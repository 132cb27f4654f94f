"""Does what a plan says: sessions are made and ended by the same functions as users',
in one commit with the journal.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.manager.domain.endpoints.events import (
    EndpointEnded,
    EndpointEventBody,
    ReplicaMoved,
    RolloutMoved,
    TargetChanged,
    TrafficChanged,
)
from retinue.manager.domain.endpoints.replicas import (
    Action,
    CallBack,
    Create,
    Drain,
    MoveRollout,
    SetTraffic,
    Stop,
    end_reason,
)
from retinue.manager.domain.endpoints.states import FINISHED_ROLLOUTS, SERVING, Lifecycle, ReplicaState, RolloutState
from retinue.manager.domain.session.events import Condition
from retinue.manager.domain.session.pending_limit import DEFAULT_MAX_PENDING, PendingLimit
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.domain.session.states import SessionState
from retinue.manager.endpoints.fleet import EndpointView, view_of
from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.session.drafts import Request, prepare
from retinue.manager.session.submit import submit
from retinue.manager.session.transaction import UnreadableSessionError, end
from retinue.manager.store.endpoints import endpoint_replicas, endpoint_revisions, endpoint_rollouts, endpoints
from retinue.manager.store.endpoints.endpoint_replicas import ReplicaMove, ReplicaRecord
from retinue.manager.store.journal import journal
from retinue.manager.store.leadership import leadership
from retinue.manager.store.placement import attempts
from retinue.rpc.core.errors import MAX_TEXT, printable

if TYPE_CHECKING:
    import datetime as dt
    import uuid
    from collections.abc import Callable, Mapping, Sequence

    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.domain.endpoints.scaling import Decision
    from retinue.manager.domain.reasons import SessionReason
    from retinue.manager.store.postgres.database import Database, Transaction

_log = logging.getLogger(__name__)

# Pauses after starts that failed: doubled each time.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 10.0, 300.0
_LONGEST_NAME = 63
# Replicas that wait for so long are worth a condition.
_PENDING_SECONDS = 5.0
_WHOLE = 100


class Actions:
    """Writes what is found and decided about endpoints. Each method returns the endpoint as it is afterwards."""

    def __init__(self, database: Database, term: int, committed: Callable[[Affected], None]) -> None:
        self._database = database
        self._term = term
        self._committed = committed
        self._pending = PendingLimit(DEFAULT_MAX_PENDING)

    async def note_states(self, view: EndpointView) -> EndpointView:
        """Writes the states of replicas that changed, and what follows: how starts failed, which images were found."""
        moved = [item for item in view.replicas if view.states[item.session_id] is not item.state]
        found = {
            item.revision: {item.image: (item.image_digest, item.image_id)}
            for item in view.replicas
            if item.image and item.image_id and item.image not in _found(view, item.revision)
        }
        if not moved and not found:
            return view
        moves = [ReplicaMove(item.session_id, view.states[item.session_id], _message(item)) for item in moved]
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await endpoint_replicas.move(tx, moves)
            for number, images in found.items():
                await endpoint_revisions.record_found_images(tx, view.record.id, number, images)
            await self._count_starts(tx, view, moved)
            await journal.append(
                tx,
                [entry(view, moved_replica(item, move)) for item, move in zip(moved, moves, strict=True)],
            )
            view = await self._again(tx, view)
        self._committed({})
        return view

    async def _count_starts(self, tx: Transaction, view: EndpointView, moved: Sequence[ReplicaRecord]) -> None:
        for revision in view.record.revisions:
            mine = [item for item in moved if item.revision == revision.number]
            states = [view.states[item.session_id] for item in mine]
            failed = sum(
                state is ReplicaState.GONE and item.state is ReplicaState.STARTING
                for item, state in zip(mine, states, strict=True)
            )
            if ReplicaState.READY in states:
                if revision.failures:
                    await endpoint_revisions.record_starts(
                        tx, view.record.id, revision.number, failures=0, retry_seconds=None
                    )
            elif failed:
                await self._count_failures(tx, view, revision.number, failed)

    async def _count_failures(self, tx: Transaction, view: EndpointView, number: int, failed: int) -> None:
        before = next(item.failures for item in view.record.revisions if item.number == number)
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(before, 16), _LONGEST_PAUSE_SECONDS)
        await endpoint_revisions.record_starts(
            tx, view.record.id, number, failures=before + failed, retry_seconds=pause
        )

    async def set_target(self, view: EndpointView, decision: Decision) -> EndpointView:
        """Writes a decision that changes the target."""
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await endpoints.set_target(
                tx, view.record.id, target=decision.target, reason=decision.cause, decision=decision
            )
            await journal.append(tx, [entry(view, TargetChanged(decision))])
            view = await self._again(tx, view)
        self._committed({})
        return view

    async def do(self, view: EndpointView, actions: Sequence[Action]) -> tuple[EndpointView, str]:
        """Does what is planned, unless the endpoint has changed meanwhile;
        returns why a replica was refused, if one was.
        """
        refused = ""
        affected: Affected = {}
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            locked = await endpoints.lock(tx, view.record.id)
            if locked is None or locked != view.record:
                return view, ""
            ended: dict[uuid.UUID, str] = {}
            entries: list[journal.Entry] = []
            moves: list[ReplicaMove] = []
            by_id = {item.session_id: item for item in view.replicas}
            for action in actions:
                match action:
                    case Create(number, count):
                        refused = await self._create(tx, view, number, count) or refused
                    case Drain(session_id, until, message):
                        seconds = max(0.0, until / 1_000 - (await endpoints.read_clock(tx)).timestamp())
                        moves.append(ReplicaMove(session_id, ReplicaState.DRAINING, message, seconds))
                    case CallBack(session_id):
                        moves.append(ReplicaMove(session_id, ReplicaState.UNREADY, "it is needed again"))
                    case Stop(session_id, message, failed):
                        moves.append(ReplicaMove(session_id, ReplicaState.STOPPING, message))
                        # Once it drains, it goes for what it was drained for.
                        drained = by_id[session_id].state is ReplicaState.DRAINING
                        ended[session_id] = by_id[session_id].message if drained else message
                        if failed:
                            await self._count_failures(tx, view, by_id[session_id].revision, 1)
                    case SetTraffic(shares):
                        await endpoint_rollouts.set_traffic(tx, view.record.id, shares)
                        entries.append(entry(view, TrafficChanged(shares)))
                    case MoveRollout(state, step):
                        moved = _rollout(view, action)
                        await endpoint_rollouts.move(tx, view.record.id, state=state, step=step, message=moved.message)
                        if state is RolloutState.DONE:
                            await endpoint_revisions.record_served(tx, view.record.id, moved.new)
                        entries.append(entry(view, moved))
            await endpoint_replicas.move(tx, moves)
            for session_id, why in ended.items():
                await _end_replica(tx, session_id, end_reason(why, view.record.lifecycle), why)
            affected = await attempts.find_affected_agents(tx, list(ended)) if ended else {}
            entries += [entry(view, moved_replica(by_id[move.session_id], move)) for move in moves]
            if entries:
                await journal.append(tx, entries)
            view = await self._again(tx, view)
        self._committed(affected)
        return view, refused

    async def _create(self, tx: Transaction, view: EndpointView, number: int, count: int) -> str:
        """Makes replicas of a revision as its owner; returns why one was refused, if one was."""
        record = view.record
        owner = Principal(Kind.USER, record.owner, memberships=(Membership(record.project, "MEMBER"),))
        asked = view.revisions[number].session.with_isolations_asked()
        # A node that fails takes as few of them with it as can be.
        spec = replace(asked, endpoint=record.name, replica_placement=asked.replica_placement or "SPREAD")
        requests = [Request(_replica_name(record.name, number), spec) for _ in range(count)]
        prepared = prepare(requests, owner)
        submission = await submit(tx, record.owner, prepared, self._pending, validate_only=False, replicas=True)
        made = [item.draft.session.id for item in submission.outcomes if not isinstance(item, Refused)]
        await endpoint_replicas.insert(tx, record.id, number, made)
        if found := _found(view, number):
            await endpoint_replicas.pin_images(tx, made, found)
        return next((str(item.error) for item in submission.outcomes if isinstance(item, Refused)), "")

    async def note_conditions(self, view: EndpointView, refused: Mapping[str, str], now: dt.datetime) -> EndpointView:
        """Writes what is noteworthy now, where it differs; ends the deletion of an endpoint whose replicas are gone.

        `refused` says by condition what was refused, and why; empty words are no condition.
        """
        record = view.record
        if record.lifecycle is Lifecycle.DELETING and not view.live and not _present(view):
            return await self._end(view)
        conditions = _conditions(view, refused, now)
        short = view.ready < record.target
        first = record.first_ready_time is None and view.ready > 0
        served = _newly_served(view)
        if record.conditions == conditions and short == (record.short_time is not None) and not first and not served:
            return view
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            if served:
                await endpoint_revisions.record_served(tx, record.id, served)
            await endpoints.set_condition(tx, record.id, conditions=conditions, ready=view.ready > 0, short=short)
            return await self._again(tx, view)

    async def _end(self, view: EndpointView) -> EndpointView:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await endpoints.set_lifecycle(tx, view.record.id, Lifecycle.DELETED)
            await journal.append(tx, [entry(view, EndpointEnded(Lifecycle.DELETED))])
            view = await self._again(tx, view)
        self._committed({})
        return view

    async def _again(self, tx: Transaction, view: EndpointView) -> EndpointView:
        """Reads an endpoint again, in the transaction that changed it."""
        record = (await endpoints.read(tx, [view.record.id])).get(view.record.id, view.record)
        replicas = (await endpoint_replicas.read(tx, [view.record.id])).get(view.record.id, [])
        return view_of(record, replicas)


async def _end_replica(tx: Transaction, session_id: uuid.UUID, reason: SessionReason, why: str) -> None:
    try:
        await end(tx, session_id, reason, why)
    except UnreadableSessionError as error:
        _log.error("a replica stays: %s", error)


def _found(view: EndpointView, number: int) -> Mapping[str, Sequence[str]]:
    return next((item.found_images for item in view.record.revisions if item.number == number), {})


def _replica_name(name: str, number: int) -> str:
    suffix = f"-r{number}-{secrets.token_hex(4)}"
    return name[: _LONGEST_NAME - len(suffix)].rstrip("-") + suffix


def _message(item: ReplicaRecord) -> str:
    """Returns why a replica is in its state, by its session or its probe."""
    if item.session_state in (SessionState.TERMINATING, SessionState.TERMINATED, SessionState.CANCELLED):
        return ": ".join(filter(None, (item.session_reason, item.session_message)))
    return item.health_message


def _rollout(view: EndpointView, move: MoveRollout) -> RolloutMoved:
    rollout = view.record.rollout
    if rollout is None:
        return RolloutMoved(0, 0, move.state, move.step, move.message)
    # Why it went back stays to be seen once it has.
    message = rollout.message if move.state is RolloutState.ROLLED_BACK else move.message
    return RolloutMoved(rollout.from_revision, rollout.to_revision, move.state, move.step, message)


def entry(view: EndpointView, body: EndpointEventBody) -> journal.Entry:
    """Returns an entry of the journal about an endpoint."""
    return journal.Entry(view.record.id, view.record.owner, view.record.project, body)


def moved_replica(replica: ReplicaRecord, move: ReplicaMove) -> ReplicaMoved:
    """Returns that a replica moved."""
    return ReplicaMoved(
        replica.session_id, replica.session_name, replica.revision, move.state, move.message, replica.agent_id
    )


def _present(view: EndpointView) -> bool:
    """Returns whether any replica drains or stops still, or its end is not written yet."""
    return any(item.state is not ReplicaState.GONE for item in view.replicas)


def _newly_served(view: EndpointView) -> int:
    """Returns the revision that has all requests for the first time, with as many ready replicas as are wanted;
    0 when none has.
    """
    record = view.record
    if record.rollout is not None and record.rollout.state not in FINISHED_ROLLOUTS:
        return 0
    ready = [item.revision for item in view.replicas if view.states[item.session_id] is ReplicaState.READY]
    whole = [item.number for item in record.revisions if item.percent == _WHOLE and item.serve_time is None]
    return next((number for number in whole if ready.count(number) >= record.target > 0), 0)


def _conditions(view: EndpointView, refused: Mapping[str, str], now: dt.datetime) -> tuple[Condition, ...]:
    """Returns what is noteworthy, each since it was first so."""
    found = {type_: printable(message, MAX_TEXT) for type_, message in refused.items() if message}
    waiting = [
        item
        for item in view.replicas
        if item.session_state is SessionState.PENDING
        and view.states[item.session_id] in SERVING
        and (now - item.since_time).total_seconds() >= _PENDING_SECONDS
    ]
    if waiting:
        first = waiting[0]
        count = f"{len(waiting)} replica{'s' if len(waiting) > 1 else ''} waiting"
        found["REPLICAS_PENDING"] = f"{count}: {first.session_reason}: {first.session_message}"
    for item in view.record.revisions:
        if item.failures:
            found["REVISION_FAILING"] = (
                f"{item.failures} replicas of revision {item.number} in a row ended before they were ready"
            )
    since = {item.type: item.since for item in view.record.conditions}
    return tuple(Condition(type_, message, since.get(type_) or now) for type_, message in found.items())
