"""Entries of the journal as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.api.sessions.convert import (
    conditions,
    kernel_state,
    network,
    result,
    service_ports,
    session_message,
    session_state,
)
from retinue.manager.domain.session import events
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.store.sessions.session_records import created_kernels, created_session
from retinue.manager.v1 import session_pb2 as pb
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from retinue.manager.store.journal.journal import Event


def event_message(event: Event) -> pb.SessionEvent:
    """Returns an entry of the journal; of one that cannot be read, its revision, time and session."""
    message = pb.SessionEvent(
        revision=event.revision, create_time=timestamp(event.create_time), session_id=str(event.session_id)
    )
    match event.body:
        case events.SessionCreated() as created:
            session = created_session(created, event.create_time)
            message.created.CopyFrom(session_message(session, created_kernels(created), view=SpecView.BASIC))
        case events.SessionMoved() as moved:
            move = message.session_moved
            move.from_state, move.to_state = session_state(moved.from_state), session_state(moved.to_state)
            move.result, move.network, move.retries = result(moved.result), network(moved.network), moved.retries
            move.reason, move.message = moved.reason, moved.message
            if moved.exit_code is not None:
                move.exit_code = moved.exit_code
        case events.KernelMoved() as moved:
            kernel = message.kernel_moved
            kernel.kernel_id, kernel.hostname = str(moved.kernel_id), moved.hostname
            kernel.from_state, kernel.to_state = kernel_state(moved.from_state), kernel_state(moved.to_state)
            kernel.agent, kernel.attempt, kernel.address = moved.agent_id or "", moved.epoch, moved.address
            kernel.reason, kernel.image_digest = moved.reason, moved.image.shown
            kernel.service_ports.extend(service_ports(moved.image.service_ports))
            if moved.exit_code is not None:
                kernel.exit_code = moved.exit_code
            if moved.end_time is not None:
                kernel.end_time.FromDatetime(moved.end_time)
        case events.ImagePulled() as pulled:
            pull = message.image_pull
            pull.kernel_id, pull.hostname, pull.attempt = str(pulled.kernel_id), pulled.hostname, pulled.epoch
            pull.agent, pull.image = pulled.agent_id, pulled.image
            pull.progress.bytes, pull.progress.total_bytes = pulled.progress.bytes, pulled.progress.total
            for layer in pulled.layers:
                pull.progress.layers.add(id=layer.id, bytes=layer.bytes, total_bytes=layer.total, done=layer.done)
        case events.KernelAccess() as access:
            accessed = message.kernel_accessed
            accessed.method = pb.AccessMethod.Value(f"ACCESS_METHOD_{access.method}")
            accessed.hostname, accessed.user = access.hostname, access.user
            accessed.token_id = "" if access.token_id is None else str(access.token_id)
            accessed.port, accessed.app, accessed.source = access.port, access.app, access.source
            accessed.connection_address, accessed.key_fingerprint = access.connection_address, access.key_fingerprint
        case events.ReasonChanged() as reason:
            changed = message.reason_changed
            changed.reason, changed.message = reason.reason, reason.message
            changed.conditions.extend(conditions(reason.conditions))
        case events.SessionUpdated() as updated:
            now = message.session_updated
            now.name, now.priority, now.hold, now.user = updated.name, updated.priority, updated.hold, updated.user
        case events.UnreadableEvent():
            pass
    return message
