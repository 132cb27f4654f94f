"""Who enters a kernel: kept in the session's journal, in the commit that lets the caller in, whatever comes of it then."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum

from retinue.manager.store import entrances
from retinue.manager.store.database import Transaction

AGAIN_SECONDS = 600.0
"""Connections and copies come by the hundred: of those by one token to one place, one in so many seconds is kept."""


class Way(StrEnum):
    """A way into a kernel."""

    ATTACH = "ATTACH"
    CODE = "CODE"
    PORT = "PORT"
    HTTP = "HTTP"
    UPLOAD = "UPLOAD"
    DOWNLOAD = "DOWNLOAD"
    SERVICE = "SERVICE"
    SERVICE_STOP = "SERVICE_STOP"


# Each of these is a user at work, or takes something away from others.
_ALWAYS = frozenset({Way.ATTACH, Way.CODE, Way.HTTP, Way.SERVICE_STOP})


@dataclass(frozen=True, slots=True)
class Entrance:
    """Who enters, where and how; `port` only by a port, `service` only where one is started or stopped.

    What is run or sent is not told: it may hold secrets.
    """

    way: Way
    hostname: str
    user: str
    token_id: uuid.UUID | None
    port: int = 0
    service: str = ""


async def record(tx: Transaction, session_id: uuid.UUID, entrance: Entrance) -> None:
    """Keeps an entrance into a kernel of a session that is there; last in the transaction."""
    payload = {
        "way": str(entrance.way),
        "hostname": entrance.hostname,
        "user": entrance.user,
        "token_id": "" if entrance.token_id is None else str(entrance.token_id),
        "port": entrance.port,
        "service": entrance.service,
    }
    await entrances.record(tx, session_id, payload, None if entrance.way in _ALWAYS else AGAIN_SECONDS)
