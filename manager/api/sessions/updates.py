"""UpdateSession, what of a session its callers may still change; and RestartSession."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from retinue.manager.api.visibility import find_session, lock_session
from retinue.manager.domain import errors, preconditions
from retinue.manager.domain.session.admission import MAX_PRIORITY, wrong_name
from retinue.manager.domain.session.events import SessionUpdated
from retinue.manager.domain.session.spec import DEFAULT_PRIORITY, SessionSpec
from retinue.manager.domain.session.spec_codec import UnreadableSpec
from retinue.manager.domain.session.states import ENDED_KERNEL_STATES, LIVE_SESSION_STATES, SessionState
from retinue.manager.server.etags import check_etag
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session import admission_quota
from retinue.manager.session.transaction import UnreadableSessionError, restart
from retinue.manager.store.endpoints import endpoints
from retinue.manager.store.journal import journal
from retinue.manager.store.sessions import sessions, updates

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from retinue.manager.store.postgres.database import Transaction
    from retinue.manager.store.sessions.session_records import SessionRecord
    from retinue.manager.v1 import session_service_pb2 as pb

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Changeable:
    """What of a session may change."""

    name: str
    priority: int
    hold: bool


_CHANGEABLE = frozenset(field.name for field in fields(Changeable))


async def update_session(tx: Transaction, request: pb.UpdateSessionRequest, changes: Mapping[str, Any]) -> uuid.UUID:
    """Changes a session, and returns its id; `changes` are fields of Changeable."""
    session_id, work = await lock_session(tx, request.session)
    session = work.records[session_id]
    check_etag(request.etag, session.version)
    spec = _readable(session)
    before = Changeable(session.name, session.priority, spec.hold)
    after = replace(before, **changes)
    if after == before:
        return session_id
    _check_state(session, before, after)
    await _check_endpoint(tx, session)
    caller = current_principal()
    if after.priority > before.priority and not caller.is_admin:
        wrong = await admission_quota.priority_violations(
            tx, session.owner, session.project, session.resource_group, after.priority
        )
        if wrong:
            raise errors.QuotaExceeded(wrong)
    _log.info("%s changes session %s from %s to %s", caller.name, session_id, before, after)
    try:
        changed = replace(spec, name=after.name, priority=after.priority, hold=after.hold)
        await updates.change(tx, session_id, changed)
    except errors.NameTaken as error:
        if session.owner == caller.name:
            raise
        by = f"{session.owner} has a session of this name that has not ended"
        raise errors.NameTaken("session", after.name, by) from error
    updated = SessionUpdated(after.name, after.priority, after.hold, caller.name)
    journal.append_ahead(tx, [journal.Entry(session_id, session.owner, session.project, updated)])
    return session_id


async def restart_session(tx: Transaction, request: pb.RestartSessionRequest) -> uuid.UUID:
    """Puts a session back into the queue, and returns its id."""
    session_id = await find_session(tx, request.session)
    session = (await sessions.read(tx, [session_id], lock=True))[session_id]
    check_etag(request.etag, session.version)
    await _check_endpoint(tx, session)
    machine = await restart(tx, session_id, by=current_principal().name, force=request.force)
    if machine.session.state is SessionState.PENDING:
        return session_id
    ended = next((kernel for kernel in machine.session.kernels if kernel.state in ENDED_KERNEL_STATES), None)
    if machine.session.state is SessionState.RUNNING and ended is not None:
        wrong = f"{ended.hostname} has ended, and cannot run again with the others"
    else:
        wrong = f"it is {machine.session.state}: ask for a new session"
    metadata = {"state": str(machine.session.state)}
    raise preconditions.StateForbids(wrong, f"session/{session_id}", metadata)


def check_restart(request: pb.RestartSessionRequest) -> None:
    """Raises InvalidRequest."""
    violations = Violations()
    violations.request_id(request.request_id)
    violations.raise_any()


def checked_changes(request: pb.UpdateSessionRequest) -> dict[str, Any]:
    """Returns the new values of fields of Changeable, by name. Raises InvalidRequest."""
    violations, spec = Violations(), request.spec
    violations.request_id(request.request_id)
    paths = violations.mask("update_mask", request.update_mask, _CHANGEABLE)
    if not request.update_mask.paths:
        paths = [field.name for field, _ in spec.ListFields()]
        for path in paths:
            if path not in _CHANGEABLE:
                violations.add(f"spec.{path}", "cannot be changed")
    if "name" in paths:
        for path, words in wrong_name(spec.name):
            violations.add(path, words)
    priority = spec.priority if spec.HasField("priority") else DEFAULT_PRIORITY
    violations.integer("spec.priority", priority, 0, MAX_PRIORITY)
    violations.raise_any()
    values = {"name": spec.name, "priority": priority, "hold": spec.hold}
    return {path: values[path] for path in paths}


def _readable(session: SessionRecord) -> SessionSpec:
    """Returns the spec of a session that may change. Raises UnreadableSessionError."""
    if isinstance(session.spec, UnreadableSpec) or session.state is None:
        raise UnreadableSessionError(session.id)
    return session.spec


def _check_state(session: SessionRecord, before: Changeable, after: Changeable) -> None:
    """Raises StateForbids when the state of the session does not allow the change."""
    if session.state is SessionState.PENDING:
        return
    if (after.priority, after.hold) != (before.priority, before.hold):
        wrong = "only a pending session changes its priority or is held"
    elif session.state not in LIVE_SESSION_STATES:
        wrong = "a session that has ended keeps its name"
    else:
        return
    metadata = {"state": str(session.state)}
    raise preconditions.StateForbids(f"{wrong}: it is {session.state}", f"session/{session.id}", metadata)


async def _check_endpoint(tx: Transaction, session: SessionRecord) -> None:
    """Raises EndpointManaged on a replica, which is its endpoint's."""
    endpoint = session.known_spec.endpoint
    if endpoint and await endpoints.names_taken(tx, {(session.project, endpoint)}):
        raise preconditions.EndpointManaged(endpoint)
