"""Decides when a running session is ended because it is idle: policies, their merging,
and their evaluation on a session. Pure.

Times are seconds since 1970 by the database's clock, spans are seconds. What is not known never counts as idle: spans
in which no user could have been heard are added to what is left, and a checker that sees nothing ends nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from retinue.manager.domain.idle.utilization import Reading
from retinue.manager.domain.reasons import ConditionType, SessionReason
from retinue.manager.domain.session.states import SessionType


class Checker(StrEnum):
    """A checker that may end a session."""

    INTERACTION = "INTERACTION"
    UTILIZATION = "UTILIZATION"
    LIFETIME = "LIFETIME"


class Status(StrEnum):
    """The status of a session by one checker."""

    GRACE = "GRACE"
    COUNTING = "COUNTING"
    WARNED = "WARNED"
    NO_DATA = "NO_DATA"


# Why a session ended, by checker.
REASONS: Mapping[Checker, str] = {
    Checker.INTERACTION: SessionReason.IDLE_TIMEOUT,
    Checker.UTILIZATION: SessionReason.IDLE_UTILIZATION,
    Checker.LIFETIME: SessionReason.IDLE_LIFETIME,
}
# The condition of a session that a checker has warned.
WARNINGS: Mapping[Checker, ConditionType] = {
    Checker.INTERACTION: ConditionType.INTERACTION_WARNING,
    Checker.UTILIZATION: ConditionType.UTILIZATION_WARNING,
    Checker.LIFETIME: ConditionType.LIFETIME_WARNING,
}
# The types of session that a checker looks at.
LOOKS_AT: Mapping[Checker, frozenset[SessionType]] = {
    Checker.INTERACTION: frozenset({SessionType.INTERACTIVE, SessionType.SYSTEM}),
    Checker.UTILIZATION: frozenset({SessionType.INTERACTIVE, SessionType.BATCH}),
    Checker.LIFETIME: frozenset({SessionType.INTERACTIVE, SessionType.BATCH}),
}
# Checkers that end a session together: one that nobody uses and that does nothing. The lifetime is a limit by itself.
JOINED = frozenset({Checker.INTERACTION, Checker.UTILIZATION})
DEFAULT_WARNING = 600.0
# What is exchanged with a session is noted so many seconds later at the most, where no timeout wants it sooner;
# and what the note itself may take.
LONGEST_PACE = 15.0
_NOTING = 1.0
# A warning is taken back when so much more is left than it was given at:
# use that is near a threshold does not make it come and go.
_SLACK = 1.25
_NUMBERS = ("grace", "warning", "extension", "interaction", "window", "lifetime")


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Spans in seconds, thresholds in per cent by slot; None is not set.
    `any_slot`: one slot under its threshold is enough; `any_checker`: one of the joined checkers is enough.
    """

    grace: float | None = None
    warning: float | None = None
    extension: float | None = None
    interaction: float | None = None
    window: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    any_slot: bool | None = None
    any_checker: bool | None = None
    lifetime: float | None = None
    exempt: frozenset[Checker] = frozenset()

    def then(self, other: IdlePolicy) -> IdlePolicy:
        """Itself with what is set in `other` over it: field by field, thresholds by slot. Associative;
        `NOTHING` is the identity.
        """
        numbers = {
            name: getattr(self, name) if getattr(other, name) is None else getattr(other, name) for name in _NUMBERS
        }
        return IdlePolicy(
            **numbers,
            thresholds={**self.thresholds, **other.thresholds},
            any_slot=self.any_slot if other.any_slot is None else other.any_slot,
            any_checker=self.any_checker if other.any_checker is None else other.any_checker,
            exempt=self.exempt | other.exempt,
        )

    def limit(self, checker: Checker) -> float | None:
        """The timeout, window or lifetime of a checker; None when it ends nothing."""
        if checker in self.exempt or (checker is Checker.UTILIZATION and not self.thresholds):
            return None
        limits = {
            Checker.INTERACTION: self.interaction,
            Checker.UTILIZATION: self.window,
            Checker.LIFETIME: self.lifetime,
        }
        return limits[checker]

    def lead(self, limit: float) -> float:
        """Returns how many seconds before the end a checker with this limit warns a session."""
        return min(DEFAULT_WARNING if self.warning is None else self.warning, limit / 2)


NOTHING = IdlePolicy()


@dataclass(frozen=True, slots=True)
class SessionObservation:
    """The observations of a running session.

    `paused` are seconds since the last interaction, or else the start, in which no user could have been heard;
    `reachable` says whether a user could be now. `warned` has when a checker warned.
    """

    type: SessionType
    start: float
    interaction: float | None = None
    paused: float = 0.0
    reachable: bool = True
    extension_end_time: float | None = None
    warned: Mapping[Checker, float] = field(default_factory=dict)
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a checker for a session; `remaining` are seconds to its end, should it not be used from now on;
    None: not known.
    """

    checker: Checker
    status: Status
    limit: float
    remaining: float | None
    measured: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of all checkers for a session, and what is to be done: warnings to be given and taken back,
    or its end.
    """

    checks: tuple[Check, ...]
    warn: tuple[Check, ...] = ()
    take_back: frozenset[Checker] = frozenset()
    end: Check | None = None

    @property
    def next_look(self) -> float | None:
        """Seconds until something can be due; None when nothing is foreseen."""
        return min((check.remaining for check in self.checks if check.remaining is not None), default=None)


def remaining_time(now: float, baseline: float, timeout: float, grace_end: float | None) -> float:
    """Returns the seconds left of a timeout that counts from the later of `baseline` and the end of the grace
    period; negative after it.
    """
    return max(baseline, baseline if grace_end is None else grace_end) + timeout - now


def evaluate(policy: IdlePolicy, seen: SessionObservation, now: float, changed: float | None = None) -> Verdict:
    """Evaluates a policy on a session at `now`. The session is ended when nothing is left and
    the warning was given early enough.

    `changed` is when timeouts were last set: what was exchanged before may be noted more slowly than these want.
    """
    checks: list[Check] = []
    warn: list[Check] = []
    take_back: set[Checker] = set()
    ends: list[Check] = []
    looking = [checker for checker in Checker if _applies(policy, seen, checker)]
    own = [
        _check(policy, seen, checker, limit, now) for checker in looking if (limit := policy.limit(checker)) is not None
    ]
    joined = [check for check in own if check.checker in JOINED] if not policy.any_checker else []
    joint = _joint(joined)
    for alone in own:
        checker, limit = alone.checker, alone.limit
        others = joined if alone in joined else [alone]
        lead, warned = max(policy.lead(other.limit) for other in others), seen.warned.get(checker)
        known = all(other.status is not Status.NO_DATA and other.remaining is not None for other in others)
        check = replace(alone, remaining=joint) if alone in joined else alone
        left = check.remaining if check.remaining is not None else limit
        if warned is not None and (left > lead * _SLACK or not known):
            take_back.add(checker)
        elif known and warned is not None:
            # Never sooner than the warning said.
            left = max(left, warned + lead - now)
            check = Check(checker, Status.WARNED, limit, max(0.0, left), check.measured)
        elif known and left <= lead and lead > 0:
            left = max(left, lead)
            check = Check(checker, Status.WARNED, limit, left, check.measured)
            warn.append(check)
        checks.append(check)
        if known and left <= 0 and not (checker is Checker.INTERACTION and maybe_unnoted(seen, now, changed)):
            ends.append(check)
    take_back.update(checker for checker in seen.warned if checker not in looking)
    return Verdict(tuple(checks), tuple(warn), frozenset(take_back), _end(ends, len(joined)))


def _joint(joined: Sequence[Check]) -> float | None:
    """Returns the seconds to the end of a session that checkers end together: the last one decides."""
    left = [check.remaining for check in joined if check.remaining is not None]
    return max(left) if left and len(left) == len(joined) else None


def _end(ends: Sequence[Check], joined: int) -> Check | None:
    """Returns the check by which a session ends; of checkers that end it together, all have to agree."""
    together = [check for check in ends if check.checker in JOINED] if joined > 1 else []
    if len(together) == joined > 1:
        return replace(together[0], measured=", and ".join(check.measured for check in together))
    return next((check for check in ends if check not in together), None)


def maybe_unnoted(seen: SessionObservation, now: float, changed: float | None) -> bool:
    """Returns whether something may have been exchanged with a session that is to be noted at the pace of timeouts that
    are not those of now.

    Only with one that ran and was in use then: the first exchange after a silence of two paces is noted at once.
    """
    if changed is None or seen.interaction is None or seen.start > changed:
        return False
    return now - changed <= LONGEST_PACE + _NOTING and now - seen.interaction <= 2 * LONGEST_PACE + _NOTING


def _applies(policy: IdlePolicy, seen: SessionObservation, checker: Checker) -> bool:
    return policy.limit(checker) is not None and seen.type in LOOKS_AT[checker]


def _check(policy: IdlePolicy, seen: SessionObservation, checker: Checker, limit: float, now: float) -> Check:
    """A checker's own view, without regard to warnings."""
    grace_end = seen.start + (policy.grace or 0.0)
    status, left, measured = Status.COUNTING, None, ""
    if checker is Checker.LIFETIME:
        left = remaining_time(now, seen.start, limit, None)
        measured = f"it has run for {spell(now - seen.start)} of at most {spell(limit)}"
    elif checker is Checker.INTERACTION:
        since = max(seen.start, seen.interaction or seen.start)
        left = remaining_time(now, since, limit, grace_end) + seen.paused
        measured = f"it was not used for {spell(max(0.0, now - since - seen.paused))} of at most {spell(limit)}"
        if not seen.reachable:
            status = Status.NO_DATA
    elif (reading := seen.reading) is not None:
        left = max(reading.remaining, grace_end + limit - now) if now < grace_end else reading.remaining
        measured = _use(policy, reading, limit)
        if now - reading.at > reading.patience:
            status = Status.NO_DATA
    else:
        status, measured = Status.NO_DATA, "what it uses is not known yet"
    if checker is not Checker.LIFETIME and now < grace_end and status is Status.COUNTING:
        status = Status.GRACE
    if left is not None and seen.extension_end_time is not None:
        left = max(left, seen.extension_end_time - now)
    return Check(checker, status, limit, None if left is None else max(0.0, left), measured)


def _use(policy: IdlePolicy, reading: Reading, window: float) -> str:
    parts = [
        f"{slot} {average:.3g} % (threshold {policy.thresholds[slot]:g} %)"
        for slot, average in sorted(reading.averages.items())
        if slot in policy.thresholds
    ]
    return f"it used {', '.join(parts)} of what it holds over {spell(min(window, reading.observed))}"


def warning_text(check: Check, now: float) -> str:
    """Returns the warning that a session gets before its end."""
    moment = dt.datetime.fromtimestamp(now + (check.remaining or 0.0), dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{check.measured}; it ends at {moment} UTC, unless that changes"


class ExtensionRefusedError(Exception):
    """The policy does not let a session be kept that long; `most` are the seconds that it does."""

    def __init__(self, message: str, most: float) -> None:
        super().__init__(message)
        self.most = most


def extension(policy: IdlePolicy, seen: SessionObservation, now: float, duration: float | None) -> float | None:
    """Until when a session is kept if its owner asks for `duration` from `now`; None asks for an interaction only.
    Raises ExtensionRefusedError.
    """
    looking = {checker for checker in Checker if _applies(policy, seen, checker)}
    if not looking:
        raise ExtensionRefusedError("no idle check looks at it: nothing would end it", 0.0)
    bounds = [policy.extension or 0.0] if looking - {Checker.LIFETIME} else []
    if Checker.LIFETIME in looking:
        bounds.append(seen.start + (policy.lifetime or 0.0) + (policy.extension or 0.0) - now)
    most = max(0.0, min(bounds))
    if duration is None:
        if Checker.INTERACTION not in looking:
            raise ExtensionRefusedError(
                f"an interaction does not change when it ends: say for how long, at most {spell(most)}", most
            )
        return seen.extension_end_time
    if duration > most:
        raise ExtensionRefusedError(f"the idle policy lets it be kept for at most {spell(most)} from now", most)
    return max(now + duration, seen.extension_end_time or 0.0)


def unwatched(before: float | None, now: float, elapsed: float, longest: float) -> float:
    """Returns the seconds between two evaluations in which it is certain that no activity could be recorded.

    `before` and `now` are by the database's clock, `elapsed` by that of this process, 0 at its first look. A clock that
    was set, and a process that stood still for more than `longest`, are such seconds; a second more or less is not.
    """
    if before is None:
        return 0.0
    lost = now - before - (elapsed if elapsed <= longest else 0.0)
    return lost if lost > 1.0 else 0.0


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def spell(seconds: float) -> str:
    """A span for people: `1 h 30 min`, the two largest units, without what is smaller; below a minute to the tenth."""
    if seconds < 60:  # noqa: PLR2004  # seconds in a minute
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    left, parts = round(seconds), list[str]()
    for size, name in _UNITS:
        if left >= size and len(parts) < 2:  # noqa: PLR2004  # two units
            parts.append(f"{left // size} {name}")
        elif parts:
            break
        left %= size
    return " ".join(parts)
