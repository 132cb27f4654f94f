"""Whatever is desired and whatever is there, plans lead to it, start nothing twice and remove nothing early."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.agent.attempts import AttemptSpec, DesiredAttempt, Goal, ObservedAttempt, Phase
from retinue.agent.reconcile.core.plan import (
    Action,
    Attach,
    Create,
    Decline,
    Desired,
    EnsureNetwork,
    Kill,
    Observed,
    Release,
    Remove,
    RemoveNetwork,
    Stop,
    plan,
)

SESSIONS = ("s1", "s2", "s3")
ATTEMPTS = tuple(f"k{number}.{epoch}" for number in range(4) for epoch in (1, 2))


class World:
    """A node as a plan sees it, and what each step does to it; checks what must never happen."""

    def __init__(self) -> None:
        self.attempts: dict[str, ObservedAttempt] = {}
        self.networks: set[str] = set()
        self.ready: set[str] = set()
        self.settled: set[str] = set()
        self.created: set[str] = set()
        self.released: set[str] = set()
        self.failing: set[str] = set()
        self.now = 0.0

    def observed(self) -> Observed:
        return Observed(dict(self.attempts), set(self.networks), set(self.ready), set(self.settled))

    def restart(self) -> None:
        """The agent's process is another one: nothing in its memory survives."""
        self.ready.clear()
        self.settled.clear()

    def end(self, attempt_id: str, phase: Phase = Phase.EXITED) -> None:
        self.attempts[attempt_id] = replace(self.attempts[attempt_id], phase=phase, kill_at=None)

    def apply(self, action: Action, desired: Desired) -> None:
        match action:
            case EnsureNetwork(session_id):
                self.networks.add(session_id)
                self.ready.add(session_id)
            case RemoveNetwork(session_id):
                assert desired.complete
                assert session_id not in desired.networks
                assert not [attempt for attempt in self.attempts.values() if attempt.session_id == session_id]
                self.networks.discard(session_id)
                self.ready.discard(session_id)
            case Create(attempt_id):
                assert attempt_id not in self.created
                assert attempt_id not in self.attempts
                spec = desired.attempts[attempt_id].spec
                assert desired.attempts[attempt_id].goal is not Goal.STOPPED
                assert not spec.networked or spec.session_id in self.ready
                self.created.add(attempt_id)
                self.attempts[attempt_id] = ObservedAttempt(
                    attempt_id,
                    spec.session_id,
                    spec.kernel_id,
                    spec.networked,
                    Phase.FAILED if attempt_id in self.failing else Phase.CREATED,
                )
            case Decline(attempt_id):
                assert desired.attempts[attempt_id].goal is Goal.STOPPED
                assert attempt_id not in self.attempts
                spec = desired.attempts[attempt_id].spec
                self.created.add(attempt_id)
                self.attempts[attempt_id] = ObservedAttempt(
                    attempt_id, spec.session_id, spec.kernel_id, spec.networked, Phase.EXITED
                )
            case Attach(attempt_id):
                attempt = self.attempts[attempt_id]
                assert attempt.networked
                assert attempt.phase is Phase.CREATED
                assert attempt.session_id in self.ready
                self.attempts[attempt_id] = replace(attempt, attached=True)
            case Release(attempt_id):
                self._release(attempt_id, desired)
            case Stop(attempt_id, grace):
                self._stop(attempt_id, grace, desired)
            case Kill(attempt_id):
                assert self.attempts[attempt_id].phase is Phase.STOPPING
                kill_at = self.attempts[attempt_id].kill_at
                assert kill_at is not None
                assert kill_at <= self.now
                self.end(attempt_id)
            case Remove(attempt_id):
                assert desired.complete
                assert attempt_id not in desired.attempts
                assert self.attempts[attempt_id].phase.ended
                assert attempt_id in self.settled
                del self.attempts[attempt_id]

    def _release(self, attempt_id: str, desired: Desired) -> None:
        attempt = self.attempts[attempt_id]
        assert attempt_id not in self.released
        assert desired.attempts[attempt_id].goal is Goal.RUNNING
        assert attempt.held
        for other in desired.attempts.values():
            if other.spec.session_id == attempt.session_id and other.goal is Goal.RUNNING:
                mate = self.attempts[other.spec.id]
                assert mate.held or mate.start_time is not None
        self.released.add(attempt_id)
        self.attempts[attempt_id] = replace(attempt, phase=Phase.RUNNING, start_time=1.0)

    def _stop(self, attempt_id: str, grace: float, desired: Desired) -> None:
        attempt = self.attempts[attempt_id]
        wanted = desired.attempts.get(attempt_id)
        assert desired.complete if wanted is None else wanted.goal is Goal.STOPPED
        assert attempt.phase in {Phase.CREATED, Phase.RUNNING} or grace < attempt.stop_grace
        grace = grace if attempt.start_time is not None else 0.0
        self.attempts[attempt_id] = replace(attempt, phase=Phase.STOPPING, stop_grace=grace, kill_at=self.now + grace)


def specification(attempt_id: str, session_id: str, networked: bool) -> AttemptSpec:
    kernel_id, _, epoch = attempt_id.rpartition(".")
    return AttemptSpec(attempt_id, session_id, kernel_id, int(epoch), "host", networked=networked)


# An attempt's session and whether it is networked never change: they follow from its id.
SPECS = {
    attempt_id: specification(attempt_id, SESSIONS[number % len(SESSIONS)], number % 2 == 0)
    for number, attempt_id in enumerate(ATTEMPTS)
}


@st.composite
def desired_sets(draw: st.DrawFn) -> Desired:
    chosen = draw(st.sets(st.sampled_from(ATTEMPTS)))
    attempts = {
        attempt_id: DesiredAttempt(
            SPECS[attempt_id], draw(st.sampled_from(Goal)), draw(st.sampled_from((0.0, 5.0, 10.0)))
        )
        for attempt_id in sorted(chosen)
    }
    return Desired(attempts, draw(st.sets(st.sampled_from(SESSIONS))), complete=True)


EVENTS = st.one_of(
    desired_sets(),
    st.just("restart"),
    st.tuples(st.just("exit"), st.sampled_from(ATTEMPTS)),
    st.tuples(st.just("steps"), st.integers(1, 5)),
    st.tuples(st.just("time"), st.sampled_from((1.0, 6.0, 20.0))),
)


def settle(world: World, desired: Desired) -> None:
    """Applies plans until there is nothing to do, acknowledges every end and lets graces run out."""
    for _ in range(100):
        actions = plan(desired, world.observed(), world.now)
        ends = {attempt.id for attempt in world.attempts.values() if attempt.phase.ended}
        if not actions and ends <= world.settled:
            times = [attempt.kill_at for attempt in world.attempts.values() if attempt.kill_at is not None]
            if not times:
                return
            world.now = max(world.now, min(times))
            continue
        world.settled |= ends
        for action in actions:
            # One step per attempt and network; another one may have been planned on what this one changes.
            if action in plan(desired, world.observed(), world.now):
                world.apply(action, desired)
    raise AssertionError(f"no end: {plan(desired, world.observed(), world.now)}")


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.sets(st.sampled_from(ATTEMPTS)), desired_sets())
def test_any_history_converges(  # noqa: PLR0912  # one branch per kind of event
    history: list[object], failing: set[str], last: Desired
) -> None:
    world = World()
    world.failing = failing
    desired = Desired({}, frozenset(), complete=False)
    for event in history:
        match event:
            case Desired():
                # Ids that were removed do not come back: a manager never reuses them.
                gone = world.created - world.attempts.keys()
                desired = replace(event, attempts={k: v for k, v in event.attempts.items() if k not in gone})
            case "restart":
                world.restart()
                desired = Desired({}, frozenset(), complete=False)
            case ("exit", str(attempt_id)):
                if attempt_id in world.attempts and world.attempts[attempt_id].phase in {Phase.RUNNING, Phase.STOPPING}:
                    world.end(attempt_id)
            case ("time", float(seconds)):
                world.now += seconds
            case ("steps", int(count)):
                for action in plan(desired, world.observed(), world.now)[:count]:
                    world.apply(action, desired)
    gone = world.created - world.attempts.keys()
    last = replace(last, attempts={k: v for k, v in last.attempts.items() if k not in gone})
    settle(world, last)
    assert plan(last, world.observed(), world.now) == []
    assert set(world.attempts) <= set(last.attempts)
    occupied = {attempt.session_id for attempt in world.attempts.values()}
    assert last.networks <= world.ready
    assert world.networks <= last.networks | occupied
    for attempt_id, wanted in last.attempts.items():
        there = world.attempts.get(attempt_id)
        mates = [other for other in last.attempts.values() if other.spec.session_id == wanted.spec.session_id]
        if wanted.goal is Goal.STOPPED:
            assert there is not None
            assert there.phase.ended
        elif wanted.spec.networked and wanted.spec.session_id not in last.networks:
            assert there is None or there.phase is not Phase.CREATING
        else:
            assert there is not None
            whole = all(
                mate.goal is not Goal.RUNNING
                or ((at := world.attempts.get(mate.spec.id)) is not None and (at.held or at.start_time is not None))
                for mate in mates
            )
            if wanted.goal is Goal.RUNNING and whole:
                assert there.phase in {Phase.RUNNING, Phase.STOPPING, Phase.EXITED}


def test_a_network_stays_while_an_attempt_of_its_session_is_made() -> None:
    spec = specification("k0.1", "s1", networked=False)
    desired = Desired({spec.id: DesiredAttempt(spec, Goal.HELD, 0.0)}, frozenset(), complete=True)
    observed = Observed({}, {"s1"}, {"s1"}, frozenset())
    assert plan(desired, observed, 0.0) == [Create(spec.id)]


@settings(max_examples=200, deadline=None)
@given(desired_sets(), desired_sets())
def test_nothing_is_stopped_or_removed_before_a_whole_set_came(first: Desired, second: Desired) -> None:
    world = World()
    settle(world, first)
    world.restart()
    world.settled = set(world.attempts)
    partial = replace(second, attempts={}, networks=frozenset(), complete=False)
    assert plan(partial, world.observed(), world.now) == []


@settings(max_examples=200, deadline=None)
@given(desired_sets())
def test_one_step_per_thing_and_the_second_plan_is_empty(desired: Desired) -> None:
    world = World()
    for _ in range(20):
        actions = plan(desired, world.observed(), world.now)
        keys = [
            action.session_id if isinstance(action, EnsureNetwork | RemoveNetwork) else action.attempt_id
            for action in actions
        ]
        assert len(keys) == len(set(keys))
        if not actions:
            break
        for action in actions:
            world.apply(action, desired)
    assert plan(desired, world.observed(), world.now) == []
