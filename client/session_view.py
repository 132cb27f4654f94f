"""Folds journal events into a session, without asking the server again."""

from __future__ import annotations

from retinue.manager.v1 import session_pb2

_ENDED = frozenset({session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_STATE_CANCELLED})
# Type of the conditions that stay when a session has ended.
_LASTING = "OOM_KILLED"


def fold(session: session_pb2.Session | None, event: session_pb2.SessionEvent) -> session_pb2.Session | None:
    """Returns the session after `event`, as a new value; pure.

    Starts from None with the session's first event, or from the session as read at an earlier revision. Events of other
    sessions, and events before the first known one, change nothing. Moves do not say what the etag became: it is empty
    after one. A change of a kind that this version does not know changes nothing.
    """
    change = event.WhichOneof("change")
    if change == "created":
        return _copy(event.created)
    if session is None or event.session_id != session.id:
        return session
    after = _copy(session)
    if change == "session_moved":
        _move_session(after, event)
    elif change == "kernel_moved":
        _move_kernel(after, event)
    elif change == "image_pull":
        _pull(after, event.image_pull)
    elif change == "reason_changed":
        changed = event.reason_changed
        after.reason, after.message, after.etag = changed.reason, changed.message, ""
        after.ClearField("conditions")
        after.conditions.extend(changed.conditions)
    elif change == "session_updated":
        updated = event.session_updated
        after.spec.name, after.spec.priority, after.spec.hold = updated.name, updated.priority, updated.hold
        after.etag = ""
    return after


def _copy(session: session_pb2.Session) -> session_pb2.Session:
    copy = session_pb2.Session()
    copy.CopyFrom(session)
    return copy


def _move_session(session: session_pb2.Session, event: session_pb2.SessionEvent) -> None:
    move = event.session_moved
    session.state, session.result, session.network = move.to_state, move.result, move.network
    session.reason, session.message = move.reason, move.message
    if move.HasField("exit_code"):
        session.exit_code = move.exit_code
    session.retries = max(session.retries, move.retries)
    session.etag = ""
    if move.to_state == session_pb2.SESSION_STATE_SCHEDULED:
        session.schedule_time.CopyFrom(event.create_time)
    elif move.to_state == session_pb2.SESSION_STATE_RUNNING:
        session.start_time.CopyFrom(event.create_time)
    elif move.to_state == session_pb2.SESSION_STATE_PENDING:
        # It was put back into the queue: what it did before does not count.
        session.ClearField("start_time")
        session.ClearField("exit_code")
    elif move.to_state in _ENDED:
        session.end_time.CopyFrom(event.create_time)
    _end_conditions(session)


def _end_conditions(session: session_pb2.Session) -> None:
    """Takes off the conditions that do not outlive a move, as the server does."""
    if session.state in {*_ENDED, session_pb2.SESSION_STATE_PENDING}:
        kept = [item for item in session.conditions if item.type == _LASTING]
        session.ClearField("conditions")
        session.conditions.extend(kept if session.state == session_pb2.SESSION_STATE_TERMINATED else ())


def _pull(session: session_pb2.Session, pull: session_pb2.ImagePull) -> None:
    """The event names one kernel; others that wait on the same agent for the same image are as far."""
    images = {kernel.hostname: _image(session.spec, kernel.role) for kernel in session.kernels}
    for kernel in session.kernels:
        if (
            kernel.agent == pull.agent
            and kernel.state == session_pb2.KERNEL_STATE_PULLING
            and images[kernel.hostname] == pull.image
        ):
            kernel.pull.bytes, kernel.pull.total_bytes = pull.progress.bytes, pull.progress.total_bytes


def _image(spec: session_pb2.SessionSpec, role: str) -> str:
    own = next((item.kernel.image for item in spec.roles if item.role == role), "")
    return own or spec.kernel.image


def _move_kernel(session: session_pb2.Session, event: session_pb2.SessionEvent) -> None:
    move = event.kernel_moved
    for kernel in session.kernels:
        if kernel.id == move.kernel_id:
            break
    else:
        return
    kernel.state, kernel.agent, kernel.attempt = move.to_state, move.agent, move.attempt
    kernel.address, kernel.reason = move.address, move.reason
    kernel.image_digest = move.image_digest or kernel.image_digest
    if move.service_ports:
        kernel.ClearField("service_ports")
        kernel.service_ports.extend(move.service_ports)
    if move.to_state != session_pb2.KERNEL_STATE_PULLING:
        kernel.ClearField("pull")
    if move.to_state == session_pb2.KERNEL_STATE_TERMINATED:
        kernel.end_time.CopyFrom(move.end_time if move.HasField("end_time") else event.create_time)
    if move.to_state == session_pb2.KERNEL_STATE_PENDING:
        # The move names the agent that it left; a pending kernel has none.
        kernel.agent = kernel.address = ""
        kernel.ClearField("exit_code")
    elif move.HasField("exit_code"):
        kernel.exit_code = move.exit_code
    session.etag = ""
