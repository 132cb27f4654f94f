"""Looks up tokens in the database, those that wait for a connection together.

Strangers send as many wrong tokens at once as they like, and each has to be looked up. One statement for all that wait
keeps the valid ones among them from waiting behind the others until they are refused.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.manager.store.accounts import accounts
from retinue.manager.store.postgres.connections import POOL_SECONDS
from retinue.manager.store.postgres.database import Database, StoreBusy, StoreUnavailable
from retinue.manager.store.postgres.lanes import POOL_SIZES, Lane, in_lane

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from retinue.manager.store.accounts.accounts import Bearer


class BearerLookups:
    """Belongs on one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connections = asyncio.Semaphore(POOL_SIZES[Lane.CREDENTIALS])
        # The next lookup, while others have all connections, and what it is for.
        self._next: asyncio.Task[Mapping[bytes, Bearer]] | None = None
        self._hashes: set[bytes] = set()

    async def find(self, secret_hash: bytes) -> Bearer | None:
        """Returns whom the token with this hash stands for, as a transaction sees it that begins after the call.
        Raises StoreUnavailable.
        """
        if self._next is None or self._next.done():
            self._hashes = set()
            self._next = asyncio.create_task(self._look_up(self._hashes), name="looks up tokens")
            self._next.add_done_callback(_retrieve)
        self._hashes.add(secret_hash)
        lookup = self._next
        # The end of one call does not end the lookup of others.
        await asyncio.wait((lookup,))
        if lookup.cancelled():
            raise StoreUnavailable("the lookup of tokens was interrupted")
        return lookup.result().get(secret_hash)

    async def _look_up(self, hashes: Collection[bytes]) -> Mapping[bytes, Bearer]:
        try:
            async with asyncio.timeout(POOL_SECONDS):
                await self._connections.acquire()
        except TimeoutError:
            raise StoreBusy(f"no connection for credentials became free within {POOL_SECONDS} s") from None
        finally:
            # It takes no more.
            self._next = None
        try:
            with in_lane(Lane.CREDENTIALS):
                async with self._database.transaction() as tx:
                    return await accounts.find_bearers(tx, hashes)
        finally:
            self._connections.release()


def _retrieve(lookup: asyncio.Task[Mapping[bytes, Bearer]]) -> None:
    """Takes the error of a lookup whose callers have all gone: asyncio would log it."""
    if not lookup.cancelled():
        lookup.exception()
