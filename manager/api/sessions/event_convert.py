"""Entries of the journal as messages."""

from __future__ import annotations

import datetime as dt
import logging

from retinue.manager.api.sessions.convert import (
    conditions,
    kernel_state,
    network,
    result,
    service_ports,
    session_message,
    session_state,
)
from retinue.manager.server.times import timestamp
from retinue.manager.session.core.spec_views import SpecView
from retinue.manager.store.journal import Event
from retinue.manager.store.session_records import created_kernels, created_session
from retinue.manager.v1 import session_pb2 as pb

_log = logging.getLogger(__name__)


def event_message(event: Event) -> pb.SessionEvent:
    """Returns an entry of the journal; of one that cannot be read, its revision, time and session."""
    try:
        return _event_message(event)
    except Exception as error:  # noqa: BLE001  # logged; those who follow get what comes after it
        _log.warning("entry %d of the journal is shown in part: %r", event.revision, error)
        return pb.SessionEvent(
            revision=event.revision, create_time=timestamp(event.create_time), session_id=str(event.session_id)
        )


def _event_message(event: Event) -> pb.SessionEvent:
    message = pb.SessionEvent(
        revision=event.revision, create_time=timestamp(event.create_time), session_id=str(event.session_id)
    )
    payload = event.payload
    if event.kind == "CREATED":
        session = created_session(payload["session"], event.create_time)
        kernels = created_kernels(payload["kernels"])
        message.created.CopyFrom(session_message(session, kernels, view=SpecView.BASIC))
    elif event.kind == "SESSION_MOVED":
        move = message.session_moved
        move.from_state, move.to_state = session_state(payload["from"]), session_state(payload["to"])
        move.result = result(payload["result"])
        move.reason, move.message = payload["reason"], payload["message"]
        move.network = network(payload["network"])
        move.retries = payload.get("retries", 0)
        if payload["exit_code"] is not None:
            move.exit_code = payload["exit_code"]
    elif event.kind == "KERNEL_MOVED":
        kernel = message.kernel_moved
        kernel.kernel_id, kernel.hostname = payload["kernel_id"], payload["hostname"]
        kernel.from_state, kernel.to_state = kernel_state(payload["from"]), kernel_state(payload["to"])
        kernel.agent, kernel.epoch, kernel.address = payload["agent"], payload["epoch"], payload["address"]
        kernel.reason = payload["reason"]
        kernel.image_digest = payload.get("image_digest", "")
        kernel.service_ports.extend(service_ports(payload.get("service_ports", ())))
        if payload["exit_code"] is not None:
            kernel.exit_code = payload["exit_code"]
        if ended := payload.get("end_time"):
            kernel.end_time.FromDatetime(dt.datetime.fromisoformat(ended))
    elif event.kind == "IMAGE_PULL":
        pull = message.image_pull
        pull.kernel_id, pull.hostname, pull.epoch = payload["kernel_id"], payload["hostname"], payload["epoch"]
        pull.agent, pull.image = payload["agent"], payload["image"]
        pull.progress.bytes, pull.progress.total_bytes = payload["bytes"], payload["total"]
        for identifier, fetched, total, done in payload["layers"]:
            pull.progress.layers.add(id=identifier, bytes=fetched, total_bytes=total, done=done)
    elif event.kind == "ENTERED":
        entered = message.kernel_accessed
        entered.method = pb.AccessMethod.Value(f"ACCESS_METHOD_{payload['way']}")
        entered.hostname, entered.user, entered.token_id = payload["hostname"], payload["user"], payload["token_id"]
        entered.port, entered.service = payload["port"], payload["service"]
    else:
        changed = message.pending_reason_changed
        changed.id = str(event.session_id)
        changed.reason, changed.message = payload.get("reason", ""), payload.get("message", "")
        changed.conditions.extend(conditions(payload.get("conditions", [])))
    return message
