"""Steps of the database's clock: found out by comparing it with one that is never set. Pure; times are passed in.

What sessions wait for is bounded by times of the database. A clock that is set an hour ahead would end all of them at
once, and one that is set back would let them continue for an hour. The leader looks at both clocks, each second while
anyone writes, so that it knows a step and its size, and moves the times of what is live by as much.

A step without a leader is not found: the boot clocks of two hosts cannot be compared, nor those of one host before and
after its restart, and all times that are stored are of the clock that was set.
"""

from __future__ import annotations

from dataclasses import dataclass

# Less is taken for the clock's being adjusted, and for a slow answer.
MIN_STEP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ClockLook:
    """The database's clock said `wall`, in seconds since 1970, at a moment between `before`
    and `after` of the other clock.
    """

    before: float
    after: float
    wall: float


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The clock was set by `seconds`, forward if positive, at most `window` seconds ago.

    `former` is what it would say now. Times up to that are of the former clock,
    unless they are within the window of the present one.
    """

    seconds: float
    window: float
    former: float


def find_step(last: ClockLook, look: ClockLook) -> ClockStep | None:
    """Returns the step between two looks; None when what the clock says can be explained without one."""
    elapsed = look.wall - last.wall
    shortest, longest = look.before - last.after, look.after - last.before
    if shortest - MIN_STEP_SECONDS <= elapsed <= longest + MIN_STEP_SECONDS:
        return None
    real = (shortest + longest) / 2
    return ClockStep(elapsed - real, longest, last.wall + real)
