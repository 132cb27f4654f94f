"""Sets the position of the journal in a reply: callers watch from there instead of reading again."""

from __future__ import annotations

from typing import Protocol, TypeVar

from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.journal import journal


class Positioned(Protocol):
    """Returns a reply with the revision that it is true at."""

    revision: int
    incarnation: str


Reply = TypeVar("Reply", bound=Positioned)


async def with_revision(tx: AsyncSession, reply: Reply) -> Reply:
    """Sets where the journal ends, and in which incarnation, as the transaction sees it after what it has done so far.

    What is read of a session from then on holds at least all that the journal says up to there.
    """
    at = await journal.head(tx)
    reply.revision, reply.incarnation = at.revision, at.incarnation
    return reply
