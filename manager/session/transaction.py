"""The unit of work: sessions are locked, moved by their machines, and saved in one commit
with the journal and the shares.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.domain.preconditions import StateForbids
from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.session.attempts import LayerReport
from retinue.manager.domain.session.events import (
    Condition,
    EventBody,
    ImagePulled,
    KernelMoved,
    PulledBytes,
    ReasonChanged,
    SessionMoved,
    with_failing_steps,
    with_memory_kills,
    with_pause,
)
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.state_machine import (
    Kernel,
    Session,
    SessionMachine,
)
from retinue.manager.domain.session.states import Goal, KernelState, Observed, SessionState
from retinue.manager.store.journal import journal
from retinue.manager.store.placement import attempts, shares
from retinue.manager.store.placement.attempts import AttemptUpdate
from retinue.manager.store.postgres.database import Answers, Query, Statement, Transaction
from retinue.manager.store.sessions import sessions, updates
from retinue.manager.store.sessions.session_records import KernelRecord, SessionRecord
from retinue.manager.store.sessions.updates import KernelUpdate, SessionUpdate

if TYPE_CHECKING:
    from retinue.manager.domain.session.spec import SessionSpec

_log = logging.getLogger(__name__)

# Pauses before a rolled-back session is tried again, by the number of failed starts.
_BACKOFF_SECONDS = (1.0, 5.0, 20.0, 60.0)


class UnreadableSessionError(StateForbids):
    """This version cannot read a session, and so does not move it."""

    def __init__(self, session_id: uuid.UUID) -> None:
        words = f"session {session_id} was written by another version of the manager, and cannot be read"
        super().__init__(words, f"session/{session_id}")
        self.session_id = session_id


@dataclass(slots=True)
class WorkingSet:
    """Locked sessions with a machine each. What the machines did is written by `save`.

    Sessions that this version cannot read have none, and stay as they are.
    """

    records: Mapping[uuid.UUID, SessionRecord]
    machines: dict[uuid.UUID, SessionMachine]
    # Bytes of output of ended attempts, to be fetched before their agents may forget them.
    output_sizes: dict[tuple[uuid.UUID, int], int] = field(default_factory=dict)
    forced: set[uuid.UUID] = field(default_factory=set)
    # Layers of images that are being fetched for attempts.
    pulls: dict[tuple[uuid.UUID, int], tuple[LayerReport, ...]] = field(default_factory=dict)
    images_before: dict[uuid.UUID, SeenImage] = field(default_factory=dict)
    attempts_before: dict[tuple[uuid.UUID, int], tuple[Goal, Observed, bool]] = field(default_factory=dict)
    # Why, by session.
    unreadable: dict[uuid.UUID, str] = field(default_factory=dict)


async def load_for_update(tx: Transaction, session_ids: Collection[uuid.UUID]) -> WorkingSet:
    """Locks sessions and builds their machines; ids that do not exist are left out."""
    return working_set(*await sessions.lock(tx, session_ids))


def working_set(
    records: Mapping[uuid.UUID, SessionRecord], kernels: Mapping[uuid.UUID, Sequence[KernelRecord]]
) -> WorkingSet:
    """Builds the machines of sessions that are locked, each with its kernels."""
    work = WorkingSet(records, {})
    for session_id, record in records.items():
        try:
            session = _session(record, kernels.get(session_id, ()))
        except Exception as error:  # noqa: BLE001  # logged; whatever is stored, the other sessions move
            work.unreadable[session_id] = repr(error)
            _log.error("session %s stays as it is: %r", session_id, error)
            continue
        for kernel in session.kernels:
            work.attempts_before[kernel.id, kernel.epoch] = (kernel.goal, kernel.observed, kernel.attempt_ended)
            work.images_before[kernel.id] = kernel.found_image
        work.machines[session_id] = SessionMachine(session)
    return work


def _session(record: SessionRecord, kernels: Iterable[KernelRecord]) -> Session:
    """Returns a session to be moved. Raises ValueError, among others, when this version cannot read it."""
    if record.type is None or record.state is None or record.result is None:
        raise ValueError("its type, state or result is unknown")
    # Of one that a newer version wrote, what this one knows of it: it has to end when that is requested.
    spec = record.known_spec
    return Session(
        id=record.id,
        type=record.type,
        state=record.state,
        kernels=[_kernel(spec, kernel) for kernel in kernels],
        result=record.result,
        exit_code=record.exit_code,
        reason=record.reason,
        message=record.message,
        failed_starts=record.failed_starts,
        failed_agents=list(record.failed_agents),
        bootstraps=bool(spec.bootstrap_script),
        retry=spec.retry,
        retries=record.retries,
        preemptible=spec.preemptible,
        network=record.network,
        conditions=record.conditions,
    )


def _kernel(spec: SessionSpec, record: KernelRecord) -> Kernel:
    if record.state is None or record.goal is None or record.observed is None or record.image is None:
        raise ValueError(f"the state of {record.hostname}, or of its attempt or image, is unknown")
    return Kernel(
        id=record.id,
        role=record.role,
        hostname=record.hostname,
        state=record.state,
        agent_id=record.agent_id,
        epoch=record.epoch,
        address=record.address,
        exit_code=record.exit_code,
        reason=record.reason,
        goal=record.goal,
        observed=record.observed,
        attempt_ended=record.attempt_ended,
        end_time=record.end_time,
        image=spec.of_role(record.role).image,
        found_image=record.image,
        working_directory=spec.of_role(record.role).working_directory,
    )


async def save(tx: Transaction, work: WorkingSet, *others: Statement, commit: bool = False) -> Answers:
    """Writes everything that changed: attempts (with the claims of those that ended, and the shares), kernels,
    sessions, journal.

    `others` are executed with that, before the journal; returns what the queries among them find.
    With `commit`, ends the transaction.
    """
    statements, entries = await _writing(tx, work)
    if not (statements or others or entries):
        return Answers({})
    appending = journal.appending(entries)
    answers = await tx.pipeline(*statements, *others, *((appending,) if entries else ()), commit=commit)
    if entries:
        journal.appended(tx, entries, answers.of(appending))
    return answers


async def save_ahead(tx: Transaction, work: WorkingSet) -> None:
    """Does as `save`, with the next statements of the transaction."""
    statements, entries = await _writing(tx, work)
    for statement in statements:
        tx.ahead(Query(statement.sql, statement.params, read=len))
    journal.append_ahead(tx, entries)


async def _writing(tx: Transaction, work: WorkingSet) -> tuple[list[Statement], list[journal.Entry]]:
    """Returns what is left to be written of everything that changed, and the entries of the journal."""
    moved_sessions, changed_kernels = list[SessionUpdate](), list[KernelUpdate]()
    changed_attempts, entries = list[AttemptUpdate](), list[journal.Entry]()
    pulling: list[uuid.UUID] = []
    changed_conditions: dict[uuid.UUID, tuple[Condition, ...]] = {}
    # Groups and owners of what is released.
    releasing: set[tuple[str, str]] = set()
    for session_id, machine in work.machines.items():
        session, record = machine.session, work.records[session_id]
        moved_kernels = {move.kernel_id for move in machine.moves if isinstance(move, KernelMoved)}
        # One that was put back for another session's sake need not wait: its start did not fail.
        failed = session.failed_starts > record.failed_starts and session.state is SessionState.PENDING
        if machine.moves or _is_noted(machine, record) or session_id in work.forced:
            backoff = _BACKOFF_SECONDS[min(session.failed_starts, len(_BACKOFF_SECONDS)) - 1]
            moved_sessions.append(
                SessionUpdate(
                    id=session_id,
                    state=session.state,
                    result=session.result,
                    exit_code=session.exit_code,
                    reason=session.reason,
                    message=session.message,
                    failed_starts=session.failed_starts,
                    retries=session.retries,
                    failed_agents=session.failed_agents,
                    delay=backoff if failed else session.pause,
                    force=session_id in work.forced,
                )
            )
        for kernel in session.kernels:
            layers = work.pulls.get((kernel.id, kernel.epoch), ()) if kernel.state is KernelState.PULLING else ()
            if kernel.id in moved_kernels or layers or kernel.found_image is not work.images_before[kernel.id]:
                changed_kernels.append(
                    KernelUpdate(
                        id=kernel.id,
                        state=kernel.state,
                        agent_id=kernel.agent_id,
                        exit_code=kernel.exit_code,
                        reason=kernel.reason,
                        image=kernel.found_image,
                        pull=_progress(layers) if layers else None,
                    )
                )
            now = (kernel.goal, kernel.observed, kernel.attempt_ended)
            if now != work.attempts_before[kernel.id, kernel.epoch]:
                if kernel.attempt_ended:
                    releasing.add((record.resource_group, record.owner))
                size = work.output_sizes.get((kernel.id, kernel.epoch), 0) if kernel.attempt_ended else 0
                changed_attempts.append(
                    AttemptUpdate(
                        kernel_id=kernel.id,
                        epoch=kernel.epoch,
                        goal=kernel.goal,
                        observed=kernel.observed,
                        ended=kernel.attempt_ended,
                        log_size=size,
                        observed_end_time=kernel.end_time,
                        usage=kernel.usage,
                    )
                )
        conditions = _conditions(machine)
        if conditions != record.conditions:
            changed_conditions[session_id] = conditions
        happened = _happened(machine, record, conditions, forced=session_id in work.forced)
        if pulls := _pulls(session, work.pulls):
            happened += pulls
            pulling.append(session_id)
        entries += [journal.Entry(session_id, record.owner, record.project, body) for body in happened]
    writing = attempts.writing(changed_attempts)
    statements: list[Statement] = [
        *((updates.condition_statement(changed_conditions),) if changed_conditions else ()),
        *(updates.update_statements(moved_sessions, changed_kernels) if moved_sessions or changed_kernels else ()),
        *((updates.pull_statement(pulling),) if pulling else ()),
        *((writing,) if changed_attempts else ()),
    ]
    if releasing:
        groups, held = shares.reading(sorted(releasing))
        found = await tx.pipeline(*statements, groups, held)
        statements = [shares.writing(found.of(writing), found.of(groups), found.of(held))]
    return statements, entries


def _conditions(machine: SessionMachine) -> tuple[Condition, ...]:
    """Returns the conditions of a session with what its kernels' agents have said of their paths, of their memory, of
    pauses, and of what they try again.
    """
    conditions = machine.session.conditions
    for kernel in machine.failing:
        conditions = with_failing_steps(conditions, kernel)
    for hostname, kills, since in machine.memory_kills:
        conditions = with_memory_kills(conditions, hostname, kills, since)
    for hostname, pause in machine.pauses.items():
        conditions = with_pause(conditions, hostname, pause)
    return conditions


def _happened(
    machine: SessionMachine, record: SessionRecord, conditions: tuple[Condition, ...], *, forced: bool
) -> list[EventBody]:
    """Returns what the journal says of a session but the progress of image pulls."""
    session = machine.session
    happened: list[EventBody] = []
    if conditions != record.conditions:
        # Before the end that may come with it: watchers of the session leave then.
        new = dict.fromkeys(item.type for item in conditions if item not in record.conditions)
        happened.append(ReasonChanged(record.reason, record.message, conditions, tuple(new)))
    happened += machine.moves
    if forced and not machine.moves:
        # Without an entry, the leader would not learn that its agents have less time for it.
        happened.append(ReasonChanged(session.reason, session.message, conditions, forced=True))
    elif _is_noted(machine, record):
        happened.append(ReasonChanged(session.reason, session.message, conditions))
    return happened


def _is_noted(machine: SessionMachine, record: SessionRecord) -> bool:
    """Returns whether a session has another message than its watchers know once they know of its moves."""
    return machine.session.message != _last_message(machine, record)


def _last_message(machine: SessionMachine, record: SessionRecord) -> str:
    """Returns the message that watchers of the session have, once they know of its moves."""
    moved = (move.message for move in reversed(machine.moves) if isinstance(move, SessionMoved))
    return next(moved, record.message)


def _pulls(session: Session, pulls: Mapping[tuple[uuid.UUID, int], tuple[LayerReport, ...]]) -> Iterable[ImagePulled]:
    """Returns the progress of image pulls for a session: once per agent and image,
    however many of its kernels wait there.
    """
    found: dict[tuple[str | None, str], ImagePulled] = {}
    for kernel in session.kernels:
        layers = pulls.get((kernel.id, kernel.epoch))
        key = (kernel.agent_id, kernel.image)
        if layers and kernel.state is KernelState.PULLING and key not in found:
            found[key] = ImagePulled(
                kernel.id,
                kernel.hostname,
                kernel.agent_id or "",
                kernel.epoch,
                kernel.image,
                _progress(layers),
                layers,
            )
    return found.values()


def _progress(layers: Iterable[LayerReport]) -> PulledBytes:
    sized = [layer for layer in layers if layer.total > 0]
    return PulledBytes(sum(layer.bytes for layer in sized), sum(layer.total for layer in sized))


async def terminate(tx: Transaction, session_id: uuid.UUID, *, by: str, force: bool) -> bool:
    """Terminates a session for a caller; returns whether anything changed. Raises UnreadableSessionError."""
    return await end(tx, session_id, SessionReason.TERMINATED_BY_USER, f"terminated by {by}", force=force)


async def terminate_locked(tx: Transaction, work: WorkingSet, session_id: uuid.UUID, *, by: str, force: bool) -> None:
    """Terminates a locked session for a caller, with the next statements of the transaction.
    Raises UnreadableSessionError.
    """
    if session_id in work.unreadable:
        raise UnreadableSessionError(session_id)
    _terminate(work, session_id, SessionReason.TERMINATED_BY_USER, f"terminated by {by}", force=force)
    await save_ahead(tx, work)


async def terminate_many(tx: Transaction, session_ids: Collection[uuid.UUID], *, by: str, force: bool) -> WorkingSet:
    """Terminates sessions for a caller at once, those that this version can read; returns them as they are then."""
    work = await load_for_update(tx, session_ids)
    for session_id in work.machines:
        _terminate(work, session_id, SessionReason.TERMINATED_BY_USER, f"terminated by {by}", force=force)
    await save(tx, work)
    return work


async def restart(tx: Transaction, session_id: uuid.UUID, *, by: str, force: bool) -> SessionMachine:
    """Puts a session back into the queue for a caller; returns it as it is then. Raises UnreadableSessionError."""
    work = await load_for_update(tx, [session_id])
    if session_id in work.unreadable:
        raise UnreadableSessionError(session_id)
    machine = work.machines[session_id]
    machine.restart(f"restarted by {by}")
    if force and machine.moves:
        work.forced.add(session_id)
    await save(tx, work)
    return machine


async def end(
    tx: Transaction, session_id: uuid.UUID, reason: SessionReason, message: str, *, force: bool = False
) -> bool:
    """Terminates a session for a reason; returns whether anything changed. Raises UnreadableSessionError."""
    work = await load_for_update(tx, [session_id])
    if session_id in work.unreadable:
        raise UnreadableSessionError(session_id)
    if session_id not in work.machines:
        return False
    changed = _terminate(work, session_id, reason, message, force=force)
    await save(tx, work)
    return changed


def _terminate(work: WorkingSet, session_id: uuid.UUID, reason: SessionReason, message: str, *, force: bool) -> bool:
    machine = work.machines[session_id]
    machine.terminate(reason, message)
    if force and machine.session.state == "TERMINATING" and not work.records[session_id].force:
        # Also shortens the grace of one that is ending already.
        work.forced.add(session_id)
        return True
    return any(isinstance(move, SessionMoved) for move in machine.moves)
