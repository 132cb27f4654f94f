"""Quotas at admission: how many sessions may wait, and how urgent they may be.

Amounts and the number of placed sessions are for the scheduler's passes (see `retinue.manager.scheduling.quotas`).
System sessions are not counted: their own number is all that limits them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.errors import QuotaExceeded
from retinue.manager.domain.session.quota_subjects import words
from retinue.manager.domain.session.states import SessionType
from retinue.manager.store.placement import quotas
from retinue.manager.store.placement.quotas import PROJECT, RESOURCE_GROUP, USER, Limits, Subject
from retinue.manager.store.sessions import sessions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.new_session import NewSession
    from retinue.manager.session.drafts import Draft

_PATHS = {USER: "users", PROJECT: "projects", RESOURCE_GROUP: "resource_groups"}

# `users/ann` and what is wrong there, with amounts.
Violation = tuple[str, str]


def subjects_of(session: NewSession) -> tuple[Subject, Subject, Subject]:
    """Returns the subjects whose quotas apply to a session."""
    return (USER, session.owner), (PROJECT, session.project), (RESOURCE_GROUP, session.resource_group)


def path(subject: Subject) -> str:
    """Returns a subject for programs: `users/ann`."""
    return f"{_PATHS[subject[0]]}/{subject[1]}"


async def violations(tx: AsyncSession, drafts: Sequence[Draft]) -> list[list[Violation]]:
    """Returns, for each of the sessions that one owner is to create, every quota that it exceeds;
    those accepted before it count.

    Quotas on pending sessions are locked until the commit, so that two commits together do not exceed them.
    """
    subjects = {subject for draft in drafts for subject in subjects_of(draft.session)}
    found = await quotas.read(tx, subjects) if subjects else []
    if not found:
        return [[] for _ in drafts]
    limited = {(quota.kind, quota.name) for quota in found if quota.max_pending_sessions is not None}
    if limited:
        await quotas.lock(tx, limited)
    by_subject = {(quota.kind, quota.name): quota for quota in found}
    taken: set[tuple[str, str]] = set()
    if limited:
        names = [(draft.session.project, draft.session.name) for draft in drafts]
        taken = await sessions.names_taken(tx, drafts[0].session.owner, names)
    return exceeded(drafts, by_subject, await quotas.count_pending(tx, limited), taken)


async def priority_violations(
    tx: AsyncSession, owner: str, project: str, resource_group: str, priority: int
) -> list[Violation]:
    """Returns every quota that does not allow a priority for a session."""
    subjects = ((USER, owner), (PROJECT, project), (RESOURCE_GROUP, resource_group))
    found = {(quota.kind, quota.name): quota for quota in await quotas.read(tx, set(subjects))}
    return [
        wrong for subject in subjects if subject in found for wrong in _too_urgent(subject, found[subject], priority)
    ]


async def limits_pending(tx: AsyncSession, owner: str) -> bool:
    """Returns whether a quota of a user says how many sessions may wait."""
    return any(quota.max_pending_sessions is not None for quota in await quotas.read(tx, [(USER, owner)]))


async def count_pending(tx: AsyncSession, owner: str) -> int:
    """Returns how many sessions of a user wait."""
    return (await quotas.count_pending(tx, [(USER, owner)]))[USER, owner]


def too_many_pending(owner: str, number: int, maximum: int) -> list[Violation]:
    """Returns the violation of the limit that holds where no quota has one."""
    subject = (USER, owner)
    return [(path(subject), f"{number} of at most {maximum} sessions of {words(subject)} wait already")]


def too_many_system(owner: str, asking: Sequence[int], number: int, maximum: int) -> dict[int, QuotaExceeded]:
    """Returns the refusals of those of `asking` that a user who has `number` system sessions may not have besides."""
    subject = (USER, owner)
    text = f"{number} of at most {maximum} system sessions of {words(subject)} are there already"
    return dict.fromkeys(asking[max(0, maximum - number) :], QuotaExceeded(((path(subject), text),)))


def exceeded(
    drafts: Sequence[Draft],
    limits: Mapping[Subject, Limits],
    pending: Mapping[Subject, int],
    taken: Collection[tuple[str, str]],
) -> list[list[Violation]]:
    """Returns what `violations` does, from plain values: quotas and numbers of pending sessions by subject,
    and (project, name) that are taken.

    A session whose name is taken is not counted: it will not be created.
    """
    waiting, names = dict(pending), set(taken)
    exceeding = []
    for draft in drafts:
        session = draft.session
        mine = [subject for subject in subjects_of(session) if subject in limits]
        found = [violation for subject in mine for violation in _found(subject, limits[subject], session, waiting)]
        name = (session.project, session.name)
        if not found and name not in names:
            names.add(name)
            for subject in mine if session.type != SessionType.SYSTEM else ():
                if subject in waiting:
                    waiting[subject] += 1
        exceeding.append(found)
    return exceeding


def _found(subject: Subject, limit: Limits, session: NewSession, waiting: Mapping[Subject, int]) -> list[Violation]:
    found = []
    maximum, number = limit.max_pending_sessions, waiting.get(subject, 0)
    if maximum is not None and number >= maximum and session.type != SessionType.SYSTEM:
        found.append((path(subject), f"{number} of at most {maximum} sessions of {words(subject)} wait already"))
    return found + _too_urgent(subject, limit, session.priority)


def _too_urgent(subject: Subject, limit: Limits, priority: int) -> list[Violation]:
    highest = limit.highest_priority
    if highest is None or priority <= highest:
        return []
    return [(path(subject), f"priority {priority} is above {highest}, the highest for {words(subject)}")]
