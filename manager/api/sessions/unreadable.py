"""Sessions of which this version cannot read everything, as messages: with what can be read,
and a condition that says so.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.server.etags import etag
from retinue.manager.v1 import session_pb2 as pb
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retinue.manager.store.sessions.session_records import KernelRecord, SessionRecord

_log = logging.getLogger(__name__)

UNREADABLE = ConditionType.UNREADABLE
_TIMES = ("create_time", "schedule_time", "start_time", "end_time")


def readable_part(
    session: SessionRecord,
    kernels: Sequence[KernelRecord],
    kernel_message: Callable[[KernelRecord], pb.Kernel],
    error: Exception,
) -> pb.Session:
    """Returns what can be read of a session. Never raises."""
    _log.warning("session %s is shown in part: %r", session.id, error)
    message = pb.Session(id=str(session.id))
    message.conditions.add(
        type=UNREADABLE,
        message="written by another version of the manager, or damaged: this one shows what it can read, and leaves it as it is",
    )
    for step in (_columns, _spec, _conditions):
        with contextlib.suppress(Exception):
            step(message, session)
    for kernel in kernels:
        try:
            shown = kernel_message(kernel)
        except Exception:  # noqa: BLE001  # the session is said to be unreadable
            shown = pb.Kernel(id=str(kernel.id), hostname=kernel.hostname)
        message.kernels.append(shown)
    return message


def missing_kernels(number: int, kernels: Sequence[KernelRecord]) -> pb.Condition | None:
    """Returns the condition of a session of so many kernels, of which some are missing from the database;
    None when all are there.
    """
    if len(kernels) >= number:
        return None
    return pb.Condition(
        type=UNREADABLE,
        message=f"{number - len(kernels)} of its {number} kernels are missing from the database: terminate it, and create it again",
    )


def _columns(message: pb.Session, session: SessionRecord) -> None:
    message.owner, message.reason, message.message = session.owner, session.reason, session.message
    message.etag = etag(session.version)
    if session.state is not None:
        message.state = pb.SessionState.Value(f"SESSION_STATE_{session.state}")
    if session.result is not None:
        message.result = pb.SessionResult.Value(f"SESSION_RESULT_{session.result}")
    for name in _TIMES:
        if (time := timestamp(getattr(session, name))) is not None:
            getattr(message, name).CopyFrom(time)
    if session.exit_code is not None:
        message.exit_code = session.exit_code


def _spec(message: pb.Session, session: SessionRecord) -> None:
    spec = message.spec
    spec.name, spec.project, spec.resource_group = session.name, session.project, session.resource_group
    spec.architecture, spec.endpoint = session.known_spec.architecture, session.known_spec.endpoint
    if session.type is not None:
        spec.type = pb.SessionType.Value(f"SESSION_TYPE_{session.type}")


def _conditions(message: pb.Session, session: SessionRecord) -> None:
    for item in session.conditions:
        message.conditions.add(type=item.type, message=item.message)
