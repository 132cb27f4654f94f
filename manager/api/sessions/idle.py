"""ExtendSession, and what the idle policy makes of a session that is shown."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from typing import TYPE_CHECKING

from retinue.manager.api.sessions.idle_convert import check_messages
from retinue.manager.api.visibility import find_session
from retinue.manager.domain import preconditions
from retinue.manager.domain.idle import policy as idle
from retinue.manager.domain.session.states import SessionState, SessionType
from retinue.manager.idle.controller import Policies, seen_in
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.store.sessions import conditions, sessions
from retinue.manager.store.sessions import idle as idle_store
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as pb

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Transaction

_log = logging.getLogger(__name__)

SHORTEST, LONGEST = dt.timedelta(seconds=1), dt.timedelta(days=365)


async def show_checks(tx: Transaction, session: session_pb2.Session) -> None:
    """Adds to a session that runs what the idle policy makes of it."""
    if session.state != session_pb2.SESSION_STATE_RUNNING:
        return
    rows = await idle_store.read_running(tx, list(SessionType), session_ids=[uuid.UUID(session.id)])
    if not rows:
        return
    seen, now = seen_in(rows[0]), await idle_store.read_now(tx)
    policy, override = await idle_store.read_policy(tx, session.spec.resource_group, session.owner)
    merged = Policies({"": policy}, {"": override}).of("", "")
    session.idle_checks.extend(check_messages(idle.evaluate(merged, seen, now).checks))
    if session.idle_checks and seen.extension_end_time is not None and seen.extension_end_time > now:
        session.extension_end_time.FromDatetime(dt.datetime.fromtimestamp(seen.extension_end_time, dt.UTC))


async def extend_session(tx: Transaction, request: pb.ExtendSessionRequest) -> uuid.UUID:
    """Keeps a session, and returns its id."""
    violations, duration = Violations(), None
    if request.HasField("duration"):
        duration = violations.duration("duration", request.duration, SHORTEST, LONGEST).total_seconds()
    violations.raise_any()
    session_id = await find_session(tx, request.session, owner_only=True)
    session = (await sessions.read(tx, [session_id], lock=True))[session_id]
    if session.state is not SessionState.RUNNING:
        raise preconditions.StateForbids(
            f"the session does not run: it is {session.state}", f"session/{session_id}", {"state": str(session.state)}
        )
    (known,) = await idle_store.read_running(tx, list(SessionType), session_ids=[session_id])
    policy, override = await idle_store.read_policy(tx, session.resource_group, session.owner)
    merged = Policies({"": policy}, {"": override}).of("", "")
    try:
        until = idle.extension(merged, seen_in(known), await idle_store.read_now(tx), duration)
    except idle.ExtensionRefusedError as error:
        raise preconditions.ExtensionRefused(str(error), f"session/{session_id}", error.most) from error
    _log.info("%s keeps session %s for %s s", current_principal().name, session_id, duration)
    await idle_store.extend(tx, session_id, until)
    await conditions.set_texts(tx, {session_id: dict.fromkeys(idle.WARNINGS.values(), "")})
    return session_id
