"""Submits sessions: those that are accepted are created in one commit. Any replica does it;
the leader learns of them from the journal.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from retinue.manager.domain.errors import NameTaken
from retinue.manager.domain.preconditions import BatchRefused
from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.session.dependency_graph import dependents
from retinue.manager.domain.session.events import SessionCreated
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.session import acceptance
from retinue.manager.session.dependency_links import refuse_taken
from retinue.manager.session.drafts import Draft
from retinue.manager.store.journal import journal
from retinue.manager.store.postgres.database import Later, Query, StoreConflict, Transaction
from retinue.manager.store.sessions import dependencies, sessions, webhooks
from retinue.manager.store.sessions.sessions import Inserted, Insertion
from retinue.manager.webhooks.seal import seal

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Mapping, Sequence

    from retinue.manager.domain.session.pending_limit import PendingLimit
    from retinue.manager.domain.session.spec import SessionSpec

QUEUED = SessionReason.QUEUED
QUEUED_MESSAGE = "no pass of the scheduler has evaluated it yet"
_PORTION = 500
# So few may lock the journal for as long as they take to be inserted.
_FEW = 20


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that is accepted; without a number and a time when it was only to be checked."""

    draft: Draft
    number: int
    create_time: dt.datetime | None

    @property
    def created(self) -> SessionCreated:
        """Returns the session with all of its request."""
        return _created(self.draft, self.number, self.draft.spec)


Outcome: TypeAlias = Accepted | Refused


class Submission(NamedTuple):
    """The outcome of each request, in order, and the revision of the first session's entry in the journal;
    0 without one.
    """

    outcomes: list[Outcome]
    revision: int


class Created(NamedTuple):
    """The sessions that were created, and the revision of the first one's entry in the journal; 0 without one."""

    sessions: Mapping[uuid.UUID, Inserted]
    revision: int


async def submit(
    tx: Transaction,
    owner: str,
    prepared: Sequence[Draft | Refused],
    pending: PendingLimit,
    *,
    validate_only: bool,
    all_or_nothing: bool = False,
    replicas: bool = False,
) -> Submission:
    """Creates the sessions of an owner that are accepted, unless only to be checked;
    returns what became of each request.

    With `all_or_nothing`, none is created when one is refused, and the others are refused for that.
    `replicas` are made by the controller of the endpoint that they name, of revisions that were checked once.
    """
    # Of a few, those that are refused may leave their numbers out: it saves the others a round trip.
    few = 0 < len(prepared) <= _FEW and not validate_only
    numbers: Later[int] | None = tx.ahead(sessions.taking_numbers(len(prepared))) if few else None
    candidates = await acceptance.decide(
        tx, owner, prepared, pending, replicas=replicas, offered=validate_only or not replicas
    )
    if all_or_nothing:
        await refuse_taken(tx, owner, candidates)
        if number := len(prepared) - len(candidates.drafts):
            candidates.refuse(dict.fromkeys(candidates.drafts, BatchRefused(number)))
    first = numbers.found if numbers is not None and candidates.drafts else None
    drafts = list(candidates.drafts.values())
    created = Created({}, 0) if validate_only else await create_many(tx, drafts, first)
    if all_or_nothing and 0 < len(created.sessions) < len(prepared):
        # Another request has taken a name meanwhile: this one leaves nothing, not even numbers in the journal.
        raise StoreConflict("a name was taken meanwhile")
    outcomes = [
        candidates.refused.get(n) or _outcome(candidates.drafts[n], created, validate_only=validate_only)
        for n in range(len(prepared))
    ]
    return Submission(outcomes, created.revision)


def _outcome(draft: Draft, created: Created, *, validate_only: bool) -> Outcome:
    session = draft.session
    inserted = created.sessions.get(session.id)
    # Names are free when the request has dependencies among its own sessions, unless another request was faster.
    if inserted is not None:
        return Accepted(draft, inserted.number, inserted.create_time)
    return Accepted(draft, 0, None) if validate_only else Refused(session.name, NameTaken("session", session.name))


async def create_many(tx: Transaction, drafts: Sequence[Draft], first: int | None = None) -> Created:
    """Inserts new sessions, in order of arrival and with consecutive numbers, with their entries in the journal.
    `first` is the first of these numbers if they are taken already.

    Those whose name is taken by a live session of the owner, or by an earlier one of `drafts`, are left out, and so are
    those that depend on them. Their numbers are left out.
    """
    if not drafts:
        return Created({}, 0)
    if first is None:
        first = await sessions.take_numbers(tx, len(drafts))
    if len(drafts) <= _FEW and not any(draft.parents or draft.spec.webhooks for draft in drafts):
        return await _create_few(tx, drafts, first)
    inserted: dict[uuid.UUID, Inserted] = {}
    for begin, portion in _portions(drafts):
        inserting = _inserting(portion, first + begin)
        inserted.update((await tx.pipeline(inserting)).of(inserting))
    if len(inserted) < len(drafts):
        orphans = _orphans(drafts, inserted)
        await sessions.remove(tx, orphans)
        for session_id in orphans:
            del inserted[session_id]
    made = [draft for draft in drafts if draft.session.id in inserted]
    edges = [
        (draft.session.id, parent.id, position, parent.settled, parent.kind)
        for draft in made
        for position, parent in enumerate(draft.parents)
    ]
    if edges:
        await dependencies.insert(tx, edges)
    hooks = [
        (draft.session.id, position, webhook.url, list(webhook.events), seal(webhook.secret))
        for draft in made
        for position, webhook in enumerate(draft.spec.webhooks)
    ]
    if hooks:
        await webhooks.insert(tx, hooks)
    revision = 0
    for _, portion in _portions(made):
        entries = _entries(portion, [inserted[draft.session.id].number for draft in portion])
        appended = await journal.append(tx, entries)
        revision = revision or appended
    return Created(inserted, revision)


async def _create_few(tx: Transaction, drafts: Sequence[Draft], first: int) -> Created:
    """Does what `create_many` does, for sessions that need nothing else, at once with the journal."""
    entries = _entries(drafts, range(first, first + len(drafts)))
    inserting, appending = _inserting(drafts, first), journal.appending_made(entries)
    answers = await tx.pipeline(inserting, appending)
    inserted = answers.of(inserting)
    if not inserted:
        return Created({}, 0)
    made = [entry for entry in entries if entry.session_id in inserted]
    return Created(inserted, journal.appended(tx, made, answers.of(appending)))


def _inserting(drafts: Sequence[Draft], first: int) -> Query[dict[uuid.UUID, Inserted]]:
    return sessions.insert_statement(
        [Insertion(draft.session, draft.spec, draft.kernels) for draft in drafts],
        first=first,
        reason=QUEUED,
        message=QUEUED_MESSAGE,
    )


def _orphans(drafts: Sequence[Draft], inserted: Mapping[uuid.UUID, Inserted]) -> set[uuid.UUID]:
    """Returns the sessions that were inserted and depend on one that was not."""
    position_of = {draft.session.id: position for position, draft in enumerate(drafts)}
    parents = {
        position: [
            position_of[parent.id] for parent in draft.parents if parent.id in position_of and not parent.implied
        ]
        for position, draft in enumerate(drafts)
        if draft.parents
    }
    missing = [position for position, draft in enumerate(drafts) if draft.session.id not in inserted]
    return {drafts[position].session.id for position in dependents(parents, missing)} & inserted.keys()


def _portions(drafts: Sequence[Draft]) -> Iterator[tuple[int, Sequence[Draft]]]:
    """Records are made into text on the event loop: some milliseconds at a time, each with where it begins."""
    return ((begin, drafts[begin : begin + _PORTION]) for begin in range(0, len(drafts), _PORTION))


def _entries(drafts: Sequence[Draft], numbers: Sequence[int]) -> list[journal.Entry]:
    # By identity: many share a spec.
    basic: dict[int, SessionSpec] = {}
    entries = []
    for draft, number in zip(drafts, numbers, strict=True):
        if (spec := basic.get(id(draft.spec))) is None:
            spec = basic[id(draft.spec)] = draft.spec.basic()
        session = draft.session
        entries.append(journal.Entry(session.id, session.owner, session.project, _created(draft, number, spec)))
    return entries


def _created(draft: Draft, number: int, spec: SessionSpec) -> SessionCreated:
    return SessionCreated(draft.session.numbered(number), spec, draft.kernels, QUEUED, QUEUED_MESSAGE)
