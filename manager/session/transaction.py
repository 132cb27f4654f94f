"""The unit of work: sessions are locked, moved by their machines, and saved in one commit with the journal and the shares."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.manager.session.core import images
from retinue.manager.session.core.attempts import LayerReport
from retinue.manager.session.core.images import SeenImage
from retinue.manager.session.core.spec import RetryPolicy
from retinue.manager.session.core.state_machine import (
    Kernel,
    KernelMoved,
    Session,
    SessionMachine,
    SessionMoved,
)
from retinue.manager.session.core.states import Goal, KernelState, Observed, SessionState
from retinue.manager.store import attempts, journal, sessions, shares
from retinue.manager.store.database import Statement, Transaction
from retinue.manager.store.session_records import KernelRecord, SessionRecord
from retinue.manager.store.sessions import KernelUpdate, SessionUpdate

_log = logging.getLogger(__name__)

# Pauses before a rolled-back session is tried again, by the number of failed starts.
_BACKOFF_SECONDS = (1.0, 5.0, 20.0, 60.0)


class UnreadableSessionError(Exception):
    """This version cannot read a session, and so does not move it."""

    def __init__(self, session_id: uuid.UUID) -> None:
        super().__init__(f"session {session_id} was written by another version of the manager, and cannot be read")
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
    # When attempts ended: as observed by their agents, as far as that is known.
    end_times: dict[tuple[uuid.UUID, int], dt.datetime] = field(default_factory=dict)
    forced: set[uuid.UUID] = field(default_factory=set)
    addresses: dict[uuid.UUID, str] = field(default_factory=dict)
    # Layers of images that are being fetched for attempts.
    pulls: dict[tuple[uuid.UUID, int], tuple[LayerReport, ...]] = field(default_factory=dict)
    images_before: dict[uuid.UUID, SeenImage] = field(default_factory=dict)
    attempts_before: dict[tuple[uuid.UUID, int], tuple[Goal, Observed, bool]] = field(default_factory=dict)
    # Why, by session.
    unreadable: dict[uuid.UUID, str] = field(default_factory=dict)


async def load_for_update(tx: Transaction, session_ids: Collection[uuid.UUID]) -> WorkingSet:
    """Locks sessions and builds their machines; ids that do not exist are left out."""
    records, kernels = await sessions.lock(tx, session_ids)
    work = WorkingSet(records, {})
    for session_id, record in records.items():
        try:
            session = _session(record, kernels.get(session_id, ()))
        except Exception as error:  # noqa: BLE001  # logged; whatever is stored, the other sessions move
            work.unreadable[session_id] = repr(error)
            _log.error("session %s stays as it is: %r", session_id, error)
            continue
        for stored in kernels.get(session_id, ()):
            work.addresses[stored.id] = stored.address
            if stored.end_time is not None:
                work.end_times[stored.id, stored.epoch] = stored.end_time
        for kernel in session.kernels:
            work.attempts_before[kernel.id, kernel.epoch] = (kernel.goal, kernel.observed, kernel.attempt_ended)
            work.images_before[kernel.id] = kernel.found_image
        work.machines[session_id] = SessionMachine(session)
    return work


def _session(record: SessionRecord, kernels: Iterable[KernelRecord]) -> Session:
    """Returns a session to be moved. Raises ValueError, among others, when this version cannot read it."""
    if record.type is None or record.state is None or record.result is None:
        raise ValueError("its type, state or result is unknown")
    return Session(
        id=record.id,
        type=record.type,
        state=record.state,
        kernels=[_kernel(record, kernel) for kernel in kernels],
        result=record.result,
        exit_code=record.exit_code,
        reason=record.reason,
        message=record.message,
        failed_starts=record.failed_starts,
        failed_agents=list(record.failed_agents),
        bootstraps=bool(record.spec.get("bootstrap_script")),
        retry=RetryPolicy(**retry) if (retry := record.spec.get("retry")) else None,
        retries=record.retries,
    )


def _kernel(session: SessionRecord, record: KernelRecord) -> Kernel:
    if record.state is None or record.goal is None or record.observed is None:
        raise ValueError(f"the state of {record.hostname}, or of its attempt, is unknown")
    return Kernel(
        id=record.id,
        role=record.role,
        hostname=record.hostname,
        state=record.state,
        agent_id=record.agent_id,
        epoch=record.epoch,
        exit_code=record.exit_code,
        reason=record.reason,
        goal=record.goal,
        observed=record.observed,
        attempt_ended=record.attempt_ended,
        image=images.reference(session.spec, record.role),
        found_image=SeenImage(record.image_digest, record.image_id, tuple(record.service_ports)),
    )


async def save(
    tx: Transaction, work: WorkingSet, *others: Statement, commit: bool = False
) -> list[list[dict[str, Any]]]:
    """Writes everything that changed: attempts (with the claims of those that ended, and the shares), kernels, sessions, journal.

    `others` are executed with that, before the journal; returns what they find. With `commit`, ends the transaction.
    """
    moved_sessions, changed_kernels = list[SessionUpdate](), list[KernelUpdate]()
    attempt_rows, entries = [], list[journal.Entry]()
    pulling: list[uuid.UUID] = []
    # Groups and owners of what is released.
    releasing: set[tuple[str, str]] = set()
    for session_id, machine in work.machines.items():
        session, record = machine.session, work.records[session_id]
        moved_kernels = {move.kernel_id for move in machine.moves if isinstance(move, KernelMoved)}
        # One that was put back for another session's sake need not wait: its start did not fail.
        failed = session.failed_starts > record.failed_starts and session.state is SessionState.PENDING
        if machine.moves or session_id in work.forced:
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
                        image_digest=kernel.found_image.digest,
                        image_id=kernel.found_image.id,
                        service_ports=kernel.found_image.service_ports,
                        pull=_progress(layers) if layers else None,
                    )
                )
            now = (kernel.goal, kernel.observed, kernel.attempt_ended)
            if now != work.attempts_before[kernel.id, kernel.epoch]:
                if kernel.attempt_ended:
                    releasing.add((record.resource_group, record.owner))
                attempt_rows.append(
                    {
                        "kernel_id": kernel.id,
                        "epoch": kernel.epoch,
                        "goal": kernel.goal,
                        "observed": kernel.observed,
                        "ended": kernel.attempt_ended,
                        "log_size": work.output_sizes.get((kernel.id, kernel.epoch), 0) if kernel.attempt_ended else 0,
                        "observed_end_time": work.end_times.get((kernel.id, kernel.epoch)),
                    }
                )
        entries.extend(_entry(record, move, work, session.retries) for move in machine.moves)
        if session_id in work.forced and not machine.moves:
            # Without an entry, the leader would not learn that its agents have less time for it.
            entries.append(_forced(record, session))
        if pulls := _pulls(record, session, work.pulls):
            entries.extend(pulls)
            pulling.append(session_id)
    statements = [
        *(sessions.update_statements(moved_sessions, changed_kernels) if moved_sessions or changed_kernels else ()),
        *((sessions.pull_statement(pulling),) if pulling else ()),
        *((attempts.writing(attempt_rows),) if attempt_rows else ()),
    ]
    if releasing:
        *_, released, groups, held = await tx.together(*statements, *shares.reading(sorted(releasing)))
        statements = [shares.writing([shares.Difference(**row) for row in released], groups, held)]
    last = [journal.appending(entries)] if entries else []
    if not (statements or others or last):
        return []
    answers = await tx.together(*statements, *others, *last, commit=commit)
    if entries:
        journal.appended(tx, entries, answers[-1])
    return answers[len(statements) : len(statements) + len(others)]


def _pulls(
    record: SessionRecord,
    session: Session,
    pulls: Mapping[tuple[uuid.UUID, int], tuple[LayerReport, ...]],
) -> list[journal.Entry]:
    """Returns the progress of image pulls for a session: once per agent and image, however many of its kernels wait there."""
    entries: dict[tuple[str | None, str], journal.Entry] = {}
    for kernel in session.kernels:
        layers = pulls.get((kernel.id, kernel.epoch))
        key = (kernel.agent_id, kernel.image)
        if not layers or kernel.state is not KernelState.PULLING or key in entries:
            continue
        payload = {
            "kernel_id": str(kernel.id),
            "hostname": kernel.hostname,
            "agent": kernel.agent_id or "",
            "epoch": kernel.epoch,
            "image": kernel.image,
            **_progress(layers),
            "layers": [[layer.id, layer.bytes, layer.total, layer.done] for layer in layers],
        }
        entries[key] = journal.Entry(record.id, record.owner, record.project, "IMAGE_PULL", payload)
    return list(entries.values())


def _forced(record: SessionRecord, session: Session) -> journal.Entry:
    payload = {
        "reason": session.reason,
        "message": session.message,
        "conditions": record.conditions,
        "forced": True,
    }
    return journal.Entry(record.id, record.owner, record.project, "NOTED", payload)


def _progress(layers: Iterable[LayerReport]) -> dict[str, int]:
    sized = [layer for layer in layers if layer.total > 0]
    return {"bytes": sum(layer.bytes for layer in sized), "total": sum(layer.total for layer in sized)}


def _entry(
    record: SessionRecord,
    move: SessionMoved | KernelMoved,
    work: WorkingSet,
    retries: int,
) -> journal.Entry:
    if isinstance(move, SessionMoved):
        kind = "SESSION_MOVED"
        payload: dict[str, Any] = {
            "from": move.from_state,
            "to": move.to_state,
            "result": move.result,
            "exit_code": move.exit_code,
            "reason": move.reason,
            "message": move.message,
            "retries": retries,
            "network": "" if move.to_state is SessionState.PENDING else record.network,
        }
    else:
        kind = "KERNEL_MOVED"
        payload = {
            "kernel_id": str(move.kernel_id),
            "hostname": move.hostname,
            "from": move.from_state,
            "to": move.to_state,
            "agent": move.agent_id or "",
            "epoch": move.epoch,
            "address": "" if move.to_state is KernelState.PENDING else work.addresses[move.kernel_id],
            "exit_code": move.exit_code,
            "reason": move.reason,
            "image_digest": move.image.shown,
            "service_ports": move.image.service_ports,
        }
        end_time = work.end_times.get((move.kernel_id, move.epoch))
        if move.to_state is KernelState.TERMINATED and end_time is not None:
            payload["end_time"] = end_time.isoformat()
    return journal.Entry(record.id, record.owner, record.project, kind, payload)
