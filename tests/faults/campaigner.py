"""A process that campaigns and, while it leads, writes and acts as fast as it may;
it says so on its output, by the clock of the machine.

Started as `python -m tests.faults.campaigner URL`.
"""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy import text

from retinue.manager.store.leadership import leadership
from retinue.manager.store.leadership.leadership import Lease, NotLeader
from retinue.manager.store.leadership.lease import boot_time
from retinue.manager.store.postgres.database import Database, StoreUnavailable


def say(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")
    sys.stdout.flush()


async def act(lease: Lease) -> None:
    """As links do before each message."""
    while True:
        lease.check()
        say("acted", lease.term, boot_time())
        await asyncio.sleep(0.01)


async def write(database: Database, lease: Lease) -> None:
    """As a leader's transactions do, and with one open nearly all the time."""
    while True:
        try:
            async with database.transaction() as tx:
                await leadership.check(tx, lease.term)
                await tx.execute(
                    text("INSERT INTO project (name) VALUES (:name)"), {"name": f"{lease.term} {boot_time()}"}
                )
                await asyncio.sleep(0.1)
            say("wrote", lease.term)
        except NotLeader:
            say("refused", lease.term)
            raise
        except StoreUnavailable:
            await asyncio.sleep(0.1)


async def main(url: str) -> None:
    database = Database(url)

    async def body(lease: Lease) -> None:
        say("leads", lease.term, boot_time())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(act(lease))
                group.create_task(write(database, lease))
        finally:
            say("ended", lease.term)

    await leadership.campaign(database, "campaigner", body)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
