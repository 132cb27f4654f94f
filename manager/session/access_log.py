"""Records access to kernels in the session's journal, in the commit that admits the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.session.events import AccessMethod, KernelAccess
from retinue.manager.store.journal import journal

if TYPE_CHECKING:
    import uuid

    from retinue.manager.store.postgres.database import Transaction

AGAIN_SECONDS = 600.0
"""Connections and copies come by the hundred: of those by one token to one place, one in so many seconds is kept."""

# Each of these is a user at work, or takes something away from others.
_ALWAYS = frozenset(AccessMethod) - {
    *(AccessMethod.PORT, AccessMethod.UPLOAD, AccessMethod.DOWNLOAD, AccessMethod.APP_START),
}


async def record(tx: Transaction, session_id: uuid.UUID, access: KernelAccess) -> None:
    """Records an access to a kernel of an existing session; last in the transaction."""
    within = None if access.method in _ALWAYS else AGAIN_SECONDS
    await journal.append_access(tx, session_id, access, within)
