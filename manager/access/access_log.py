"""Records access to kernels in the session's journal, in the commit that admits the caller."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum

from retinue.manager.store import kernel_access
from retinue.manager.store.database import Transaction

AGAIN_SECONDS = 600.0
"""Connections and copies come by the hundred: of those by one token to one place, one in so many seconds is kept."""


class AccessMethod(StrEnum):
    """A way in which a kernel is accessed."""

    ATTACH = "ATTACH"
    CODE = "CODE"
    PORT = "PORT"
    HTTP = "HTTP"
    UPLOAD = "UPLOAD"
    DOWNLOAD = "DOWNLOAD"
    SERVICE = "SERVICE"
    SERVICE_STOP = "SERVICE_STOP"


# Each of these is a user at work, or takes something away from others.
_ALWAYS = frozenset({AccessMethod.ATTACH, AccessMethod.CODE, AccessMethod.HTTP, AccessMethod.SERVICE_STOP})


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """One access: who, where and how; `port` only by a port, `service` only where one is started or stopped.

    What is run or sent is not recorded: it may hold secrets.
    """

    method: AccessMethod
    hostname: str
    user: str
    token_id: uuid.UUID | None
    port: int = 0
    service: str = ""


async def record(tx: Transaction, session_id: uuid.UUID, access: KernelAccess) -> None:
    """Records an access to a kernel of an existing session; last in the transaction."""
    payload = {
        "way": str(access.method),
        "hostname": access.hostname,
        "user": access.user,
        "token_id": "" if access.token_id is None else str(access.token_id),
        "port": access.port,
        "service": access.service,
    }
    await kernel_access.record(tx, session_id, payload, None if access.method in _ALWAYS else AGAIN_SECONDS)
