"""What is sent to whom, signed how, and tried again when. Pure.

Signatures follow the Standard Webhooks specification, https://www.standardwebhooks.com.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from dataclasses import dataclass
from urllib.parse import urlsplit

from standardwebhooks import Webhook

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import (
    Condition,
    EventBody,
    ReasonChanged,
    SessionCreated,
    SessionMoved,
    UnreadableEvent,
)
from retinue.manager.domain.session.states import Result, SessionState

EVENTS = ("CREATED", "SCHEDULED", "RUNNING", "PENDING", "TERMINATING", "TERMINATED", "CANCELLED", "SUCCEEDED", "FAILED")
IDLE_WARNING = "IDLE_WARNING"
_IDLE_WARNINGS = frozenset(
    {ConditionType.INTERACTION_WARNING, ConditionType.UTILIZATION_WARNING, ConditionType.LIFETIME_WARNING}
)
ENDS = ("TERMINATED", "CANCELLED")
# What is said of a session that has made no move yet.
_CREATED = SessionMoved(SessionState.PENDING, SessionState.PENDING, Result.UNDEFINED)
# Tries in all, and pauses between them: some 12 hours.
MAX_TRIES = 24
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 3600.0
MAX_URL = 2048
_SECRET_PREFIX = "whsec_"  # noqa: S105  # how secrets begin, none itself
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 24, 64


def wrong_url(url: str) -> str:
    """What is wrong with a URL, in words; empty when nothing is."""
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        return f"must be at most {MAX_URL} printable ASCII characters without spaces"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "must be http://HOST… or https://HOST…"
    if parts.username is not None or parts.password is not None:
        return "must hold no user name: sign with `secret` instead"
    return ""


def wrong_secret(secret: str) -> str:
    """Returns what is wrong with the secret of a webhook; empty when nothing is, or there is none."""
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not secret or (secret.startswith(_SECRET_PREFIX) and _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES):
        return ""
    return f"must be {_SECRET_PREFIX} and {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES} random bytes in base64"


def events_of(body: EventBody | UnreadableEvent) -> tuple[str, ...]:
    """Returns the events that an entry of the journal is for receivers, the most specific one last;
    none for most entries.
    """
    match body:
        case SessionCreated():
            return ("CREATED",)
        case ReasonChanged():
            return (IDLE_WARNING,) if _warnings(body) else ()
        case SessionMoved() if body.to_state in EVENTS:
            result = {Result.SUCCESS: "SUCCEEDED", Result.FAILED: "FAILED"}.get(body.result)
            ended = (result,) if body.to_state in ENDS and result is not None else ()
            return (body.to_state, *ended)
    return ()


def _warnings(body: ReasonChanged) -> list[Condition]:
    """Warnings of the end that are new with an entry of the journal; it has all conditions of the session."""
    new = _IDLE_WARNINGS.intersection(body.new)
    return [condition for condition in body.conditions if condition.type in new]


def wanted(asked: tuple[str, ...], happened: tuple[str, ...]) -> str:
    """Returns the event to send, the most specific one; empty for none. A webhook that asks for none gets the end."""
    asked = asked or ENDS
    return next((event for event in reversed(happened) if event in asked), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEntry:
    """An entry of the journal about a session, with the session's name."""

    revision: int
    create_time: dt.datetime
    session_id: uuid.UUID
    name: str
    owner: str
    project: str
    body: EventBody | UnreadableEvent


def body_of(event: str, entry: SessionEntry) -> str:
    """Returns the JSON that is sent."""
    move = _CREATED
    if isinstance(entry.body, SessionMoved):
        move = entry.body
    elif isinstance(entry.body, ReasonChanged):
        warnings = _warnings(entry.body)
        reason = ", ".join(warning.type for warning in warnings)
        message = "; ".join(warning.message for warning in warnings)
        move = SessionMoved(SessionState.RUNNING, SessionState.RUNNING, Result.UNDEFINED, None, reason, message)
    content = {
        "event": event,
        "revision": entry.revision,
        "time": entry.create_time.isoformat(),
        "session": {
            "id": str(entry.session_id),
            "name": entry.name,
            "owner": entry.owner,
            "project": entry.project,
            "state": move.to_state,
            "result": move.result,
            "exitCode": move.exit_code,
            "reason": move.reason,
            "message": move.message,
            "retries": move.retries,
        },
    }
    return json.dumps(content, separators=(",", ":"))


def headers_of(message_id: str, event: str, body: str, secret: str, now: int) -> dict[str, str]:
    """Returns the headers of a request that is sent at `now`, in seconds since 1970;
    `message_id` is the same at each try.

    Raises ValueError on a secret that `wrong_secret` refuses.
    """
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "retinue",
        "Retinue-Event": event,
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
    }
    if secret:
        headers["webhook-signature"] = Webhook(secret).sign(message_id, dt.datetime.fromtimestamp(now, dt.UTC), body)
    return headers


def pause(tries: int) -> float | None:
    """Seconds before the next try after so many that failed; None to give up."""
    return None if tries >= MAX_TRIES else min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1))
