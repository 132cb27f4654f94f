"""What the journal of a session says."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.client import enum_names

if TYPE_CHECKING:
    from retinue.client.client import Client
    from retinue.client.sessions import Session


async def accesses(client: Client, session: Session) -> list[tuple[str, str, str, int]]:
    """Returns who was let into its kernels so far, in order: way, user, kernel, port; the user's token, and a time,
    are in each entry.
    """
    await session.refresh()
    found = []
    async with aclosing(client.sessions.watch(after_revision=0, session_id=session.id)) as events:
        async for event in events:
            if event.WhichOneof("change") == "kernel_accessed":
                entered = event.kernel_accessed
                assert entered.token_id
                assert event.create_time.seconds
                way = enum_names.name_of(enum_names.ACCESS_METHOD, entered.method)
                found.append((way, entered.user, entered.hostname, entered.port))
            if event.revision >= (session.revision or 0):
                return found
    return found


async def warnings(client: Client, session: Session) -> list[str]:
    """Returns the warnings that a session was given (`+`) and that were taken back (`-`), and the reasons of its
    moves, up to its end.
    """
    entries, known = [], set[str]()
    watch = client.sessions.watch(after_revision=session.revision, session_id=session.id, until_ended=True)
    async with aclosing(watch) as events:
        async for event in events:
            if event.HasField("reason_changed"):
                now = {condition.type for condition in event.reason_changed.conditions}
                entries += [f"+{name}" for name in now - known] + [f"-{name}" for name in known - now]
                known = now
            elif event.HasField("session_moved"):
                entries.append(event.session_moved.reason)
    return [entry for entry in entries if entry]
