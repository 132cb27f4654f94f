"""WatchEndpoints: what happens to endpoints, as its reader may see it, from a revision on."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.manager.api.endpoints.convert import decision_message
from retinue.manager.api.endpoints.requests import find_id
from retinue.manager.api.sessions.watch import portions
from retinue.manager.api.visibility import caller_visibility
from retinue.manager.domain import errors
from retinue.manager.domain.endpoints import events
from retinue.manager.endpoints.fleet import UnreadableEndpointError, reading
from retinue.manager.store.journal import journal
from retinue.manager.v1 import endpoint_pb2
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from retinue.manager.store.journal.journal_tail import JournalTail
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)


async def serve_endpoint_watch(
    database: Database, tail: JournalTail, request: pb.WatchEndpointsRequest
) -> AsyncGenerator[pb.WatchEndpointsResponse, None]:
    """Serves one stream."""
    if request.after.revision < 0:
        raise errors.InvalidRequest([("after.revision", "must not be negative")])
    visibility = caller_visibility()
    async with database.transaction() as tx:
        newest, oldest, incarnation = await journal.head(tx)
        only = await find_id(tx, request.endpoint) if request.endpoint else None
        resumed = request.HasField("after")
        after = newest if not resumed else request.after.revision or oldest
        # Refuses a revision that is gone or not there yet before the stream begins.
        await journal.read(tx, after, 1, incarnation=request.after.incarnation)
    yield pb.WatchEndpointsResponse(position=JournalPosition(revision=after, incarnation=incarnation))
    async with aclosing(portions(tail, after, only)) as found:
        async for revision, entries in found:
            made = [
                _shown(event, event.body)
                for event in entries
                if isinstance(event.body, events.EVENT_BODIES)
                and request.project in {"", event.project}
                and visibility.can_read(event.owner, event.project)
            ]
            shown = [event for event in made if event is not None]
            position = JournalPosition(revision=revision, incarnation=incarnation)
            yield pb.WatchEndpointsResponse(position=position, events=shown)


def _shown(event: journal.Event, body: events.EndpointEventBody) -> endpoint_pb2.EndpointEvent | None:
    """Returns an entry of the journal; None, after an error in the log, for one that cannot be read."""
    try:
        return event_message(event, body)
    except UnreadableEndpointError as error:
        _log.error("the journal's entry %d about endpoint %s is left out: %s", event.revision, event.session_id, error)
        return None


@reading()
def event_message(event: journal.Event, body: events.EndpointEventBody) -> endpoint_pb2.EndpointEvent:
    """Returns an entry of the journal. Raises UnreadableEndpointError."""
    message = endpoint_pb2.EndpointEvent(
        revision=event.revision, create_time=timestamp(event.create_time), endpoint_id=str(event.session_id)
    )
    match body:
        case events.EndpointCreated():
            created = message.created
            created.id, created.owner, created.host_label = str(event.session_id), event.owner, body.host_label
            created.spec.name, created.spec.project, created.target = body.name, event.project, body.target
        case events.EndpointUpdated():
            message.updated.fields.extend(body.fields)
        case events.RevisionDeployed():
            message.revision_deployed.revision, message.revision_deployed.author = body.revision, body.author
        case events.RolloutMoved():
            rollout = message.rollout_moved
            rollout.from_revision, rollout.to_revision = body.old, body.new
            rollout.state = endpoint_pb2.RolloutState.Value(f"ROLLOUT_STATE_{body.state}")
            rollout.step, rollout.message = max(0, body.step - 1), body.message
        case events.TrafficChanged():
            message.traffic_changed.traffic.extend(_shares(body.shares))
        case events.TargetChanged():
            message.target_changed.CopyFrom(decision_message(body.decision, event.create_time))
        case events.ReplicaMoved():
            replica = message.replica_moved
            replica.session_id, replica.session, replica.revision = str(body.session_id), body.session, body.revision
            replica.state = endpoint_pb2.ReplicaState.Value(f"REPLICA_STATE_{body.state}")
            replica.message, replica.agent = body.message, body.agent
        case events.EndpointEnded():
            message.deleted.state = endpoint_pb2.EndpointState.Value(f"ENDPOINT_STATE_{body.state}")
        case events.FloorSet():
            message.floor_set.replicas = body.replicas
            if body.end_time is not None:
                message.floor_set.end_time.FromDatetime(body.end_time)
    return message


def _shares(shares: Sequence[tuple[int, int]]) -> list[endpoint_pb2.RevisionShare]:
    return [endpoint_pb2.RevisionShare(revision=revision, percent=percent) for revision, percent in shares]
