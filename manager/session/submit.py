"""What users may do to sessions: create and terminate. Any replica does it; the leader finds out from the journal."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.manager.reasons import SessionReason
from retinue.manager.session.core.dependency_graph import dependents
from retinue.manager.session.core.image_registries import images_of
from retinue.manager.session.core.spec import MountSpec, SessionSpec, WebhookSpec, kernel_id, kernel_plans
from retinue.manager.session.core.spec_views import basic
from retinue.manager.session.core.state_machine import SessionMoved
from retinue.manager.session.transaction import UnreadableSessionError, load_for_update, save
from retinue.manager.store import dependencies, journal, sessions, webhooks
from retinue.manager.store.database import Statement, Transaction
from retinue.manager.webhooks.seal import seal
from retinue.rpc.core.amounts import parse_amount

QUEUED = SessionReason.QUEUED
_PORTION = 500
# So few may hold the journal for as long as they are being made.
_FEW = 20


class NameTakenError(Exception):
    """A live session of the owner in the project has the name."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The rows of a session that is to be made, and of its kernels: those of `new_rows`."""

    session: dict[str, Any]
    kernels: list[dict[str, Any]]
    # What it depends on: ids, and whether they have succeeded already.
    parents: list[tuple[uuid.UUID, bool]] = field(default_factory=list)
    webhooks: tuple[WebhookSpec, ...] = ()

    @property
    def mounts(self) -> list[MountSpec]:
        """What it wants to mount."""
        return [MountSpec(**mount) for mount in self.session["spec"]["mounts"]]

    @property
    def images(self) -> list[str]:
        """References of the images that it asks for."""
        return images_of(self.session["spec"])


def new_rows(session_id: uuid.UUID, owner: str, spec: SessionSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rows of a session that was just accepted, and of its kernels; amounts in smallest units."""
    session = {
        "id": session_id,
        "name": spec.name,
        "owner": owner,
        "project": spec.project,
        "resource_group": spec.resource_group,
        "type": spec.type,
        "cluster_mode": "SINGLE_NODE" if spec.single_node else "MULTI_NODE",
        "cluster_size": spec.cluster_size,
        "priority": spec.priority,
        "spec": spec.to_json(),
        "endpoint": spec.endpoint,
        "state": "PENDING",
        "result": "UNDEFINED",
        "reason": QUEUED,
        "message": "no pass of the scheduler has looked at it yet",
        "version": 1,
    }
    amounts = {
        role: {slot: parse_amount(slot, text) for slot, text in spec.of_role(role).slots.items()}
        for role, _ in spec.layout
    }
    kernels = [
        {
            "id": plan.id,
            "session_id": session_id,
            "role": plan.role,
            "role_index": plan.index,
            "local_rank": plan.local_rank,
            "hostname": plan.hostname,
            "slots": amounts[plan.role],
            "state": "PENDING",
        }
        for plan in kernel_plans(session_id, spec.layout)
    ]
    return session, kernels


def draft(session_id: uuid.UUID, owner: str, spec: SessionSpec) -> Draft:
    """A session that was just accepted."""
    return Draft(*new_rows(session_id, owner, spec), webhooks=spec.webhooks)


def draft_alike(other: Draft, session_id: uuid.UUID, name: str) -> Draft:
    """A session that was asked for as another one that depends on nothing, but for its name: what takes most of the time was done for that."""
    session = {
        **other.session,
        "id": session_id,
        "name": name,
        "spec": {**other.session["spec"], "name": name},
    }
    kernels = [
        {
            **kernel,
            "id": kernel_id(session_id, kernel["local_rank"], kernel["hostname"]),
            "session_id": session_id,
        }
        for kernel in other.kernels
    ]
    return Draft(session, kernels, webhooks=other.webhooks)


async def create(tx: Transaction, session: dict[str, Any], kernels: list[dict[str, Any]]) -> int:
    """Writes a new session with its journal entry; returns the entry's revision. Raises NameTakenError."""
    made, revision = await create_many(tx, [Draft(session, kernels)])
    if not made:
        raise NameTakenError(session["name"])
    return revision


async def create_many(tx: Transaction, drafts: Sequence[Draft]) -> tuple[set[uuid.UUID], int]:
    """Writes new sessions, in order of arrival, with their journal entries; returns the ids of those made and the revision of the first.

    Those whose name is taken by a live session of the owner, or by an earlier one of `drafts`, are left out, and so are those that depend
    on them. The revision is 0 when none was made. Rows of those made get their `create_time`.
    """
    if len(drafts) <= _FEW and not any(draft.parents or draft.webhooks for draft in drafts):
        return await _create_few(tx, drafts)
    times: dict[uuid.UUID, dt.datetime] = {}
    for portion in _portions(drafts):
        (rows,) = await tx.together(_inserting(portion))
        times.update({row["id"]: row["create_time"] for row in rows})
    made = set(times)
    if len(made) < len(drafts):
        orphans = _orphans(drafts, made)
        await sessions.remove(tx, orphans)
        made -= orphans
    edges = [
        (draft.session["id"], parent, position, settled)
        for draft in drafts
        if draft.session["id"] in made
        for position, (parent, settled) in enumerate(draft.parents)
    ]
    if edges:
        await dependencies.insert(tx, edges)
    hooks = [
        (draft.session["id"], position, webhook.url, list(webhook.events), seal(webhook.secret))
        for draft in drafts
        if draft.session["id"] in made
        for position, webhook in enumerate(draft.webhooks)
    ]
    if hooks:
        await webhooks.insert(tx, hooks)
    first = 0
    for portion in _portions([draft for draft in drafts if draft.session["id"] in made]):
        revision = await journal.append(tx, [_created(draft) for draft in portion])
        first = first or revision
    _tell_times(drafts, times)
    return made, first


async def _create_few(tx: Transaction, drafts: Sequence[Draft]) -> tuple[set[uuid.UUID], int]:
    """As `create_many`, of sessions that need nothing else, at once with the journal."""
    entries = [_created(draft) for draft in drafts]
    rows, numbered = await tx.together(_inserting(drafts), journal.appending_made(entries))
    times = {row["id"]: row["create_time"] for row in rows}
    _tell_times(drafts, times)
    if not times:
        return set(), 0
    return set(times), journal.appended(tx, [entry for entry in entries if entry.session_id in times], numbered)


def _inserting(drafts: Sequence[Draft]) -> Statement:
    return sessions.inserting(
        [draft.session for draft in drafts], [kernel for draft in drafts for kernel in draft.kernels]
    )


def _tell_times(drafts: Sequence[Draft], times: Mapping[uuid.UUID, dt.datetime]) -> None:
    for draft in drafts:
        if (at := times.get(draft.session["id"])) is not None:
            draft.session["create_time"] = at


def _orphans(drafts: Sequence[Draft], made: set[uuid.UUID]) -> set[uuid.UUID]:
    """Of those made, the ones that depend on one of `drafts` that was not."""
    place = {draft.session["id"]: position for position, draft in enumerate(drafts)}
    parents = {
        position: [place[parent] for parent, _ in draft.parents if parent in place]
        for position, draft in enumerate(drafts)
        if draft.parents
    }
    missing = [position for position, draft in enumerate(drafts) if draft.session["id"] not in made]
    return {drafts[position].session["id"] for position in dependents(parents, missing)} & made


def _portions(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Rows are made into text on the event loop: some milliseconds at a time."""
    return (drafts[begin : begin + _PORTION] for begin in range(0, len(drafts), _PORTION))


def _created(draft: Draft) -> journal.Entry:
    session = draft.session
    return journal.Entry(
        session_id=session["id"],
        owner=session["owner"],
        project=session["project"],
        kind="CREATED",
        payload={
            # Journals are read by more people than the owner, for longer, and are kept in memory.
            "session": {**_recorded(session), "spec": basic(session["spec"])},
            "kernels": [_recorded(kernel) for kernel in draft.kernels],
        },
    )


async def terminate(tx: Transaction, session_id: uuid.UUID, *, by: str, force: bool) -> bool:
    """Ends a session on request; returns whether anything changed. Raises UnreadableSessionError."""
    taken = await load_for_update(tx, [session_id])
    if session_id in taken.unreadable:
        raise UnreadableSessionError(session_id)
    machine = taken.machines.get(session_id)
    if machine is None:
        return False
    machine.terminate(SessionReason.TERMINATED_BY_USER, f"terminated by {by}")
    changed = any(isinstance(move, SessionMoved) for move in machine.moves)
    if force and machine.session.state == "TERMINATING" and not taken.rows[session_id]["force"]:
        # Also shortens the grace of one that is ending already.
        taken.forced.add(session_id)
        changed = True
    await save(tx, taken)
    return changed


def _recorded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, uuid.UUID) else value for key, value in row.items()}
