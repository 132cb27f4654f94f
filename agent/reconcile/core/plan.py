"""Plans the next steps on the node from the desired and the observed state. Pure; time is passed in.

Each plan holds at most one step per attempt and per network. The caller applies it and plans again from what is then
observed, until a plan is empty: a lost answer, a crash and a restart are all the same case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.attempts import DesiredAttempt, Goal, ObservedAttempt, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Set


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired state: attempts by id, and sessions that have a network here.

    Until it is `complete`, no whole set has come yet, and absence from it means nothing. With `absence_removes`, what
    is absent from a complete set is ended and removed; without it, only attempts in `removed`, which the manager named,
    and the networks of `removed_networks` are.
    """

    attempts: Mapping[str, DesiredAttempt]
    networks: Set[str]
    complete: bool
    absence_removes: bool = True
    removed: Set[str] = field(default_factory=frozenset)
    removed_networks: Set[str] = field(default_factory=frozenset)

    def is_removed(self, attempt: ObservedAttempt) -> bool:
        """Returns whether an observed attempt that is not desired has to end.

        A rebuilt one never ends by its absence: a manager that knows it names it.
        """
        return attempt.id in self.removed or (self.complete and self.absence_removes and not attempt.rebuilt)


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed state: attempts by id; sessions of which anything of a network exists,
    and those whose network is whole.

    `settled` are ended attempts of which a manager has recorded the end, `fenced` those that have been without a
    manager for too long. `authorized` has the keys that attempts are known to let in by.
    """

    attempts: Mapping[str, ObservedAttempt]
    networks: Set[str]
    ready: Set[str]
    settled: Set[str]
    fenced: Set[str] = frozenset()
    authorized: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnsureNetwork:
    """Make the network of a session whole."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Identify:
    """Complete the record of a rebuilt attempt from what the manager knows of it."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Create:
    """Create an attempt and hold it at its start barrier."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Decline:
    """Record the end of an attempt that was to be stopped before it was created."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach an attempt to its session's network, and create its egress link."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """Release the command of an attempt."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Authorize:
    """Have an attempt that serves SFTP let in by the keys that are desired."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask an attempt to end within `grace` seconds."""

    attempt_id: str
    grace: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End an attempt for good."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Forget an ended attempt."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class RemoveNetwork:
    """Remove the network of a session."""

    session_id: str


_MAKING = Create | Decline
AttemptAction = Identify | Create | Decline | Attach | Release | Authorize | Stop | Kill | Remove
NetworkAction = EnsureNetwork | RemoveNetwork
Action = AttemptAction | NetworkAction

DEFAULT_GRACE = 10.0
"""Seconds between the polite and the final signal for an attempt that is simply no longer desired."""


def plan(desired: Desired, observed: Observed, now: float) -> list[Action]:
    """Returns the next steps, in this order: networks made, attempts, networks removed. `now` is monotonic, in seconds.

    * An attempt is created only if there is no record of it.
    * It is released once it is to run and all attempts of its session here that are to run are held,
      or have been released.
    * Nothing is stopped or removed for being absent from a desired set that is not complete, or whose absences do not
      remove; nor is a rebuilt attempt, ever. What the manager names as removed is.
    * An attempt that has been without a manager for too long is stopped without grace, whatever is desired.
    * An ended attempt is forgotten when its end is settled and it is no longer desired; a network is removed when it is
      no longer desired and no attempt of its session is left or about to be made.
    """
    actions: list[Action] = [EnsureNetwork(session_id) for session_id in sorted(desired.networks - observed.ready)]
    blocked = _blocked_sessions(desired, observed)
    for attempt_id in sorted(desired.attempts.keys() | observed.attempts.keys()):
        wanted, there = desired.attempts.get(attempt_id), observed.attempts.get(attempt_id)
        if there is not None:
            step = _step(wanted, there, desired, observed, blocked, now)
        elif wanted is not None:
            step = _first_step(wanted, desired, observed)
        if step is not None:
            actions.append(step)
    if desired.complete:
        occupied = {attempt.session_id for attempt in observed.attempts.values()}
        occupied |= {desired.attempts[step.attempt_id].spec.session_id for step in actions if isinstance(step, _MAKING)}
        gone = observed.networks - desired.networks - occupied
        # Of a rebuilt attempt that no manager has named, the session is not known: its network may be any of them.
        if not desired.absence_removes or "" in occupied:
            gone &= desired.removed_networks
        actions += [RemoveNetwork(session_id) for session_id in sorted(gone)]
    return actions


def _blocked_sessions(desired: Desired, observed: Observed) -> set[str]:
    """Sessions with an attempt that is to run, and is neither held nor has been released."""
    blocked = set()
    for attempt_id, wanted in desired.attempts.items():
        if wanted.goal is not Goal.RUNNING:
            continue
        there = observed.attempts.get(attempt_id)
        if there is None or not (there.held or there.start_time is not None):
            blocked.add(wanted.spec.session_id)
    return blocked


def _first_step(wanted: DesiredAttempt, desired: Desired, observed: Observed) -> AttemptAction | None:
    if wanted.goal is Goal.STOPPED:
        return Decline(wanted.spec.id)
    # A network that is there and no longer desired may go at any time.
    if wanted.spec.networked and wanted.spec.session_id not in desired.networks & observed.ready:
        return None
    return Create(wanted.spec.id)


def _step(  # noqa: PLR0912, PLR0917  # the whole situation of one attempt
    wanted: DesiredAttempt | None,
    there: ObservedAttempt,
    desired: Desired,
    observed: Observed,
    blocked: Set[str],
    now: float,
) -> AttemptAction | None:
    unwanted = desired.is_removed(there) if wanted is None else wanted.goal is Goal.STOPPED
    grace = DEFAULT_GRACE if wanted is None else wanted.stop_grace
    step: AttemptAction | None = None
    if there.id in observed.fenced:
        unwanted, grace = True, 0.0
    if there.phase.ended:
        if wanted is None and desired.complete and there.id in observed.settled:
            step = Remove(there.id)
    elif there.phase is Phase.STOPPING:
        if there.kill_at is not None and there.kill_at <= now:
            step = Kill(there.id)
        elif there.kill_at is not None and (
            there.id in observed.fenced or (wanted is not None and wanted.goal is Goal.STOPPED)
        ):
            # The grace may be cut short while it runs, never made longer.
            step = Stop(there.id, grace) if grace < there.stop_grace else None
    elif unwanted and there.phase in {Phase.WAITING, Phase.PULLING, Phase.CREATING, Phase.CREATED, Phase.RUNNING}:
        step = Stop(there.id, grace)
    elif wanted is not None and not there.session_id:
        step = Identify(there.id)
    elif wanted is not None and there.phase is Phase.WAITING:
        step = _first_step(wanted, desired, observed)
    elif wanted is not None and there.phase is Phase.CREATED:
        ready = not there.networked or there.session_id in observed.ready
        if not there.held:
            step = Attach(there.id) if ready else None
        elif ready and wanted.goal is Goal.RUNNING and there.session_id not in blocked:
            step = Release(there.id)
    elif (
        wanted is not None
        and wanted.spec.sftp is not None
        and there.phase is Phase.RUNNING
        and observed.authorized.get(there.id) != wanted.spec.sftp.authorized_keys
    ):
        step = Authorize(there.id)
    return step
