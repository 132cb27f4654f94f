"""Lanes to the database: who shares connections with whom, so that those of one kind who are
many do not keep others waiting.

A lane belongs to a task, and whatever the task starts inherits it: the leader's parts run in the leader's lane without
any of them naming it, and a call runs in that of its caller from the moment when it is known who calls.
"""

from __future__ import annotations

import contextlib
import enum
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Lane(enum.StrEnum):
    """A lane: users of the database that share connections."""

    LEADER = "leader-pool"
    AGENTS = "agents"
    ADMINISTRATORS = "administrators"
    USERS = "users"
    # Callers who have yet to say who they are: their credentials are looked up.
    CREDENTIALS = "credentials"
    # What every manager does by itself.
    BACKGROUND = "background"


POOL_SIZES: Mapping[Lane, int] = {
    Lane.LEADER: 6,
    Lane.AGENTS: 2,
    Lane.ADMINISTRATORS: 2,
    # More than the heavy calls that one user may have running at a time.
    Lane.USERS: 10,
    Lane.CREDENTIALS: 2,
    Lane.BACKGROUND: 2,
}

DEDICATED_CONNECTIONS = 5
"""Connections beside those of lanes: for leading, two; for hearing and telling of changes; for health."""
MAX_CONNECTIONS = sum(POOL_SIZES.values()) + DEDICATED_CONNECTIONS
"""How many connections a manager takes at most."""

_current: ContextVar[Lane] = ContextVar("lane", default=Lane.USERS)


def current_lane() -> Lane:
    """Returns the lane of this task."""
    return _current.get()


def enter_lane(lane: Lane) -> None:
    """Puts this task, and what it starts from now on, into a lane."""
    _current.set(lane)


@contextlib.contextmanager
def in_lane(lane: Lane) -> Iterator[None]:
    """Puts this task into a lane for as long as the block lasts."""
    token = _current.set(lane)
    try:
        yield
    finally:
        _current.reset(token)
