"""Says in a reply where the journal is: callers watch from there instead of reading again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from retinue.manager.store.journal import journal
from retinue.manager.v1.journal_position_pb2 import JournalPosition

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession


class Positioned(Protocol):
    """A reply with the position that it is true at."""

    @property
    def position(self) -> JournalPosition:
        """Returns the position, which may be changed."""


Reply = TypeVar("Reply", bound=Positioned)


def position_of(head: journal.Head) -> JournalPosition:
    """Returns the message for where the journal ends."""
    return JournalPosition(revision=head.revision, incarnation=head.incarnation)


async def with_position(tx: AsyncSession, reply: Reply) -> Reply:
    """Sets where the journal ends, as the transaction sees it after what it has done so far.

    What is read of a session from then on holds at least all that the journal says up to there.
    """
    reply.position.CopyFrom(position_of(await journal.head(tx)))
    return reply
