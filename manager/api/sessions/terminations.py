"""BatchTerminateSessions: ends many sessions, a portion of them in each commit."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, TypeVar

from retinue.manager.api.sessions.convert import session_state
from retinue.manager.api.sessions.requests import bounded, wrong_references
from retinue.manager.api.visibility import find_sessions
from retinue.manager.domain import errors
from retinue.manager.server.call_limits import BULK_ROW_COST
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import position_of
from retinue.manager.server.turn_taking import charge
from retinue.manager.session.transaction import UnreadableSessionError, WorkingSet, terminate_many
from retinue.manager.store.journal import journal
from retinue.manager.store.sessions import sessions
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.rpc.errors import status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from retinue.manager.store.postgres.database import Database

# Records are read and made into text on the event loop, some milliseconds at a time; and reports of agents wait for
# sessions that are locked.
_PORTION = 100

_Item = TypeVar("_Item")


async def terminate_sessions(
    database: Database, request: pb.BatchTerminateSessionsRequest, committed: Callable[[], None]
) -> pb.BatchTerminateSessionsResponse:
    """Ends the sessions of a request, and calls `committed` after each commit. Raises InvalidRequest.

    Sessions end whether the others do or not, and a repeated request ends the rest: one commit of all of them would
    only lock them, and the journal, for longer.
    """
    if violations := wrong_references(request.sessions):
        raise errors.InvalidRequest(violations)
    charge(BULK_ROW_COST * len(request.sessions))
    found: dict[str, uuid.UUID | errors.NotFound] = {}
    async with database.transaction() as tx:
        at = await journal.head(tx)
        for references in _portions(list(dict.fromkeys(request.sessions))):
            found |= await find_sessions(tx, references)
        named = {meant: reference for reference, meant in found.items() if isinstance(meant, uuid.UUID)}
        pending = await sessions.pending_among(tx, named)
    became: dict[uuid.UUID, pb.BatchTerminateSessionsResult] = {}
    for ids in _portions(sorted(named, key=lambda session_id: session_id not in pending)):
        async with database.transaction() as tx:
            work = await terminate_many(tx, ids, by=current_principal().name, force=request.force)
        committed()
        became |= {session_id: _result(work, session_id, named[session_id]) for session_id in ids}
    results = (
        became[meant] if isinstance(meant, uuid.UUID) else pb.BatchTerminateSessionsResult(refused=status_of(meant))
        for meant in (found[reference] for reference in request.sessions)
    )
    return pb.BatchTerminateSessionsResponse(results=bounded(results), position=position_of(at))


def _result(work: WorkingSet, session_id: uuid.UUID, reference: str) -> pb.BatchTerminateSessionsResult:
    """Returns what became of a session; one may have been purged since it was found."""
    if session_id not in work.records:
        return pb.BatchTerminateSessionsResult(refused=status_of(errors.NotFound("session", reference)))
    if session_id in work.unreadable:
        return pb.BatchTerminateSessionsResult(refused=status_of(UnreadableSessionError(session_id)))
    record, session = work.records[session_id], work.machines[session_id].session
    terminated = pb.TerminatedSession(
        id=str(session_id), name=record.name, number=record.number, state=session_state(session.state)
    )
    return pb.BatchTerminateSessionsResult(terminated=terminated)


def _portions(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[begin : begin + _PORTION] for begin in range(0, len(items), _PORTION))
