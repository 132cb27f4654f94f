"""Sessions of which this version cannot read everything, as messages: with what can be read, and a condition that says so."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retinue.manager.reasons import ConditionType
from retinue.manager.server.etags import etag
from retinue.manager.server.times import timestamp
from retinue.manager.v1 import session_pb2 as pb

_log = logging.getLogger(__name__)

UNREADABLE = ConditionType.UNREADABLE
_SPEC_TEXTS = ("name", "project", "resource_group", "architecture", "endpoint")
_TIMES = ("create_time", "schedule_time", "start_time", "end_time")


def readable_part(
    row: Mapping[str, Any],
    kernels: Sequence[Mapping[str, Any]],
    kernel_message: Callable[[Mapping[str, Any]], pb.Kernel],
    error: Exception,
) -> pb.Session:
    """Returns what can be read of a session. Never raises."""
    _log.warning("session %s is shown in part: %r", row.get("id"), error)
    message = pb.Session(id=str(row.get("id", "")))
    message.conditions.add(
        type=UNREADABLE,
        message="written by another version of the manager, or damaged: this one shows what it can read, and leaves it as it is",
    )
    for step in (_columns, _spec, _conditions):
        with contextlib.suppress(Exception):
            step(message, row)
    for kernel in kernels:
        try:
            shown = kernel_message(kernel)
        except Exception:  # noqa: BLE001  # the session is said to be unreadable
            shown = pb.Kernel(id=str(kernel.get("id", "")), hostname=str(kernel.get("hostname", "")))
        message.kernels.append(shown)
    return message


def missing_kernels(number: int, kernels: Sequence[Mapping[str, Any]]) -> pb.Condition | None:
    """Returns the condition of a session of so many kernels, of which some are missing from the database; None when all are there."""
    if len(kernels) >= number:
        return None
    return pb.Condition(
        type=UNREADABLE,
        message=f"{number - len(kernels)} of its {number} kernels are missing from the database: terminate it, and create it again",
    )


def _columns(message: pb.Session, row: Mapping[str, Any]) -> None:
    message.owner, message.reason, message.message = row["owner"], row["reason"], row["message"]
    message.etag = etag(row["version"])
    message.state = pb.SessionState.values()[0]
    with contextlib.suppress(ValueError):
        message.state = pb.SessionState.Value(f"SESSION_STATE_{row['state']}")
    with contextlib.suppress(ValueError):
        message.result = pb.SessionResult.Value(f"SESSION_RESULT_{row['result']}")
    for name in _TIMES:
        if row.get(name) is not None:
            getattr(message, name).CopyFrom(timestamp(row[name]))
    if row.get("exit_code") is not None:
        message.exit_code = row["exit_code"]


def _spec(message: pb.Session, row: Mapping[str, Any]) -> None:
    for name in _SPEC_TEXTS:
        if isinstance(value := row["spec"].get(name), str):
            setattr(message.spec, name, value)
    with contextlib.suppress(ValueError):
        message.spec.type = pb.SessionType.Value(f"SESSION_TYPE_{row['spec'].get('type')}")


def _conditions(message: pb.Session, row: Mapping[str, Any]) -> None:
    for item in row["conditions"]:
        message.conditions.add(type=item["type"], message=item["message"])
