"""What is sent to whom, signed how, and tried again when. Pure.

The signature is HMAC-SHA256 over the time of sending, a dot and the body, so that an old request cannot be sent once more as a new one.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import ipaddress
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from retinue.manager.reasons import ConditionType

EVENTS = ("CREATED", "SCHEDULED", "RUNNING", "PENDING", "TERMINATING", "TERMINATED", "CANCELLED", "SUCCEEDED", "FAILED")
IDLE_WARNING = "IDLE_WARNING"
_IDLE_WARNINGS = frozenset(
    {ConditionType.INTERACTION_WARNING, ConditionType.UTILIZATION_WARNING, ConditionType.LIFETIME_WARNING}
)
ENDS = ("TERMINATED", "CANCELLED")
# Tries in all, and pauses between them: some 12 hours.
MAX_TRIES = 24
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 3600.0
MAX_URL = 2048

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Addresses that requests may go to: of the public internet, and those that are allowed; none that is denied."""

    allowed: tuple[Network, ...] = ()
    denied: tuple[Network, ...] = ()

    def permits(self, address: str) -> bool:
        """Whether requests may go to an address. One that only wraps another counts as that."""
        inner = _unwrapped(ipaddress.ip_address(address.partition("%")[0]))
        if any(inner in network for network in self.denied):
            return False
        if any(inner in network for network in self.allowed):
            return True
        if isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local:
            return False
        return inner.is_global and not inner.is_multicast


PUBLIC_ONLY = AddressPolicy()
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Deprecated, and still routed into IPv4 by some; `::` and `::1` come out as 0.0.0.0 and 0.0.0.1.
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")


def _unwrapped(address: IpAddress) -> IpAddress:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64 or address in _IPV4_COMPATIBLE:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


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


def events_of(kind: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
    """What an entry of the journal is to those who are told; nothing for most."""
    if kind == "CREATED":
        return ("CREATED",)
    if kind == "NOTED":
        return (IDLE_WARNING,) if _warnings(payload) else ()
    if kind != "SESSION_MOVED" or payload["to"] not in EVENTS:
        return ()
    result = {"SUCCESS": "SUCCEEDED", "FAILURE": "FAILED"}.get(payload["result"])
    ended = (result,) if payload["to"] in ENDS and result is not None else ()
    return (payload["to"], *ended)


def _warnings(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Warnings of the end that are new with an entry of the journal; it has all conditions of the session."""
    new = [name for name in payload.get("new", ()) if name in _IDLE_WARNINGS]
    return [condition for condition in payload.get("conditions", ()) if condition["type"] in new]


def wanted(asked: tuple[str, ...], happened: tuple[str, ...]) -> str:
    """The event to tell of, the most telling one; empty for none. Who asks for nothing is told of the end."""
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
    kind: str
    payload: Mapping[str, Any]


def body_of(event: str, entry: SessionEntry) -> str:
    """Returns the JSON that is sent. Raises LookupError and TypeError on a payload of another version."""
    payload = entry.payload if entry.kind == "SESSION_MOVED" else {}
    if event == IDLE_WARNING:
        warnings = _warnings(entry.payload)
        payload = {
            "to": "RUNNING",
            "reason": ", ".join(warning["type"] for warning in warnings),
            "message": "; ".join(warning["message"] for warning in warnings),
        }
    told = {
        "event": event,
        "revision": entry.revision,
        "time": entry.create_time.isoformat(),
        "session": {
            "id": str(entry.session_id),
            "name": entry.name,
            "owner": entry.owner,
            "project": entry.project,
            "state": payload.get("to", "PENDING"),
            "result": payload.get("result", "UNDEFINED"),
            "exitCode": payload.get("exit_code"),
            "reason": payload.get("reason", ""),
            "message": payload.get("message", ""),
            "retries": payload.get("retries", 0),
        },
    }
    return json.dumps(told, separators=(",", ":"))


def headers_of(key: str, event: str, body: str, secret: str, now: int) -> dict[str, str]:
    """Headers of one sending at `now`, in seconds since 1970; `key` is the same each time."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "retinue",
        "Idempotency-Key": key,
        "Retinue-Event": event,
        "Retinue-Timestamp": str(now),
    }
    if secret:
        signature = hmac.new(secret.encode(), f"{now}.{body}".encode(), hashlib.sha256).hexdigest()
        headers["Retinue-Signature"] = f"v1={signature}"
    return headers


def pause(tries: int) -> float | None:
    """Seconds before the next try after so many that failed; None to give up."""
    return None if tries >= MAX_TRIES else min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1))
