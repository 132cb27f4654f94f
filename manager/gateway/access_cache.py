"""Caches access to ports: looked up in the database, trusted for a moment, and checked again while it is in use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.agent_rpc.relay import AttemptLocation
from retinue.manager.domain.errors import RevisionCompacted, RevisionInFuture, RevisionLost
from retinue.manager.domain.session.events import SessionMoved
from retinue.manager.domain.session.states import SessionState
from retinue.manager.gateway.core.rules import Target
from retinue.manager.identity.tokens import hash_secret
from retinue.manager.session import kernel_locator
from retinue.manager.store.access import port_access
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.supervision import supervise

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Iterable

    from retinue.manager.store.access.port_access import PortAccessRecord
    from retinue.manager.store.journal.journal_tail import JournalTail

_log = logging.getLogger(__name__)

# How long what was read is believed; while it is in use it is read again as often.
POLL_SECONDS = 1.0
# Entries that were not used for so long are evicted.
IDLE_SECONDS = 300.0
OVER = (SessionState.TERMINATING, SessionState.TERMINATED, SessionState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Access:
    """A browser's right to a port: `location` is where the main kernel runs, None while it does not,
    and `address` its own there. `host` is the one that the program sees, with its port; empty for the browser's.
    """

    hash: bytes
    user: str
    target: Target
    over: bool
    location: AttemptLocation | None
    address: str
    host: str = ""


@dataclass(slots=True)
class _Known:
    access: Access
    read: float
    used: float


class AccessCache:
    """Access that browsers have, by the hash of their cookies; belongs on one event loop.

    While the database is unreachable, granted access stays valid: no right can be withdrawn then either.
    """

    def __init__(self, database: Database, tail: JournalTail, monotonic: Callable[[], float]) -> None:
        """`monotonic` is in seconds."""
        self._database = database
        self._tail = tail
        self._monotonic = monotonic
        self._ended: Callable[[bytes], None] = lambda _key: None
        self._known: dict[bytes, _Known] = {}

    def on_end(self, ended: Callable[[bytes], None]) -> None:
        """Registers a callback that gets the hash of access that expired, or is not in use."""
        self._ended = ended

    async def find(self, secrets: Iterable[str], target: Target) -> Access | None:
        """Returns the access that one of these secrets grants at an address; None for none. Raises StoreUnavailable."""
        for secret in secrets:
            access = await self._find(hash_secret(secret))
            if access is not None and access.target == target:
                self._known[access.hash].used = self._monotonic()
                return access
        return None

    async def look_up(self, key: bytes) -> Access | None:
        """Returns the access of a hash; None for none. Raises StoreUnavailable."""
        access = await self._find(key)
        self.using(key)
        return access

    def now(self, key: bytes) -> Access | None:
        """Returns cached access."""
        known = self._known.get(key)
        return None if known is None else known.access

    def using(self, key: bytes) -> None:
        """A connection of it is open."""
        if known := self._known.get(key):
            known.used = self._monotonic()

    async def _find(self, key: bytes) -> Access | None:
        known = self._known.get(key)
        if known is not None and self._monotonic() - known.read < POLL_SECONDS:
            return known.access
        try:
            await self._read([key])
        except StoreUnavailable:
            if known is None:
                raise
        return self.now(key)

    async def _read(self, keys: Collection[bytes]) -> None:
        now = self._monotonic()
        async with self._database.transaction() as tx:
            found = {record.hash: record for record in await port_access.read(tx, keys)}
        for key in keys:
            if key not in found:
                self._drop(key)
                continue
            access = _access(found[key])
            known = self._known.setdefault(key, _Known(access, now, now))
            known.access, known.read = access, now
            if access.over:
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        if self._known.pop(key, None) is not None:
            self._ended(key)

    async def run(self) -> None:
        """Keeps what is known true until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_again(), name="looks at access")
            group.create_task(supervise("ends of sessions", self._follow), name="ends of sessions")

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            idle = self._monotonic() - IDLE_SECONDS
            for key in [key for key, known in self._known.items() if known.used < idle]:
                self._drop(key)
            if self._known:
                try:
                    await self._read(list(self._known))
                except StoreUnavailable:
                    _log.debug("access cannot be checked: the database is unreachable")

    async def _follow(self) -> None:
        """The end of a session is the end of all access to it, at once."""
        # What is missed while the journal cannot be followed, the next look at the rows finds.
        with contextlib.suppress(RevisionCompacted, RevisionInFuture, RevisionLost):
            async for batch in self._tail.follow(await self._tail.newest()):
                self._end_sessions(
                    {
                        event.session_id
                        for event in batch
                        if isinstance(event.body, SessionMoved) and event.body.to_state in OVER
                    }
                )

    def _end_sessions(self, session_ids: Collection[uuid.UUID]) -> None:
        for key in [key for key, known in self._known.items() if known.access.target.session_id in session_ids]:
            self._drop(key)


def _access(record: PortAccessRecord) -> Access:
    try:
        location = kernel_locator.location_of(record.location)
    except kernel_locator.KernelNotRunningError:
        location = None
    target = Target(record.session_id, record.port)
    host = f"{record.host}:{record.port}" if record.host else ""
    return Access(record.hash, record.user, target, record.session_state in OVER, location, record.kernel_address, host)
