"""Whose call begins when: each caller's calls at their pace, and those of callers beside each other in turn."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.server.call_limits import COSTS, DEFAULT_LIMITS, Caller, CallerClass, Weight
from retinue.manager.server.turn_taking import PLACES
from retinue.manager.server.turns import ACTIVE_SECONDS, DEFAULT_PACING, Pace, Paces, Turns
from retinue.manager.store.postgres.lanes import POOL_SIZES, Lane

ADA, BOB, EVE = (Caller(CallerClass.USER, name) for name in ("ada", "bob", "eve"))
NODE = Caller(CallerClass.AGENT, "node")
PACING: Mapping[CallerClass, Pace] = {CallerClass.USER: Pace(at_a_time=2, share=0.25, burst=0.5)}


def test_so_many_calls_of_a_caller_run_at_a_time_and_the_others_wait_in_order() -> None:
    paces = Paces[int](PACING)
    assert [paces.arrive(ADA, number, 0.01, 0) for number in range(5)] == [True, True, False, False, False]
    assert paces.arrive(BOB, 9, 0.01, 0)
    assert paces.due(0) == []
    paces.end(ADA)
    assert paces.due(0) == [2]
    paces.leave(ADA, 3)
    paces.end(ADA)
    paces.end(ADA)
    assert paces.due(0) == [4]
    assert (paces.waiting(ADA), paces.next_due(0)) == (0, None)


def test_a_call_that_does_not_count_passes_those_that_run_but_not_those_that_wait() -> None:
    paces = Paces[int](PACING)
    assert paces.arrive(ADA, 0, 0.01, 0)
    assert paces.arrive(ADA, 1, 0.01, 0)
    assert paces.arrive(ADA, 2, 0.01, 0, counts=False)
    assert not paces.arrive(ADA, 3, 0.01, 0)
    assert not paces.arrive(ADA, 4, 0.01, 0, counts=False)
    paces.end(ADA)
    assert paces.due(0) == [3, 4]


def test_a_caller_alone_is_not_held_back_and_has_no_debt_when_another_comes() -> None:
    paces = Paces[int](PACING)
    for number in range(1000):
        assert paces.arrive(ADA, number, 0.01, 0.01 * (number // 100))
        paces.end(ADA)
    now = 0.09
    assert paces.arrive(BOB, 0, 0.01, now)
    paces.end(BOB)
    # What she spent alone is no debt: the next call begins, those after it at her pace.
    assert paces.arrive(ADA, 1000, 0.01, now)
    assert not paces.arrive(ADA, 1001, 0.01, now)
    assert paces.next_due(now) == pytest.approx(0.04)
    assert paces.due(now + 0.039) == []
    assert paces.due(now + 0.0401) == [1001]


def test_callers_who_have_gone_hold_nobody_back() -> None:
    paces = Paces[int](PACING)
    assert paces.arrive(BOB, 0, 0.01, 0)
    paces.end(BOB)
    assert paces.arrive(ADA, 0, 5.0, 1)
    paces.end(ADA)
    assert not paces.arrive(ADA, 1, 0.01, 1)
    assert paces.due(ACTIVE_SECONDS - 6) == []
    assert paces.due(ACTIVE_SECONDS) == [1]


def test_while_others_call_a_caller_gets_its_burst_and_then_its_share() -> None:
    paces = Paces[int](PACING)
    began = 0
    for step in range(10_001):
        now = step / 1000
        if step % 100 == 0:
            assert paces.arrive(BOB, step, 0.001, now), "who asks for little never waits"
            paces.end(BOB)
        while paces.waiting(ADA) < 3:
            if paces.arrive(ADA, step, 0.01, now):
                began += 1
                paces.end(ADA)
        for _ in paces.due(now):
            began += 1
            paces.end(ADA)
    pace = PACING[CallerClass.USER]
    assert began * 0.01 == pytest.approx(pace.burst + pace.share * 10, abs=0.03)


def test_what_a_call_costs_beyond_its_beginning_is_made_up_for_within_a_bound() -> None:
    paces = Paces[int](PACING)
    paces.arrive(BOB, 0, 0.001, 0)
    assert paces.arrive(ADA, 0, 0.001, 0)
    paces.charge(ADA, 1e9, 0)
    paces.end(ADA)
    assert not paces.arrive(ADA, 1, 0.001, 0)
    assert paces.next_due(0) == pytest.approx(4.0)
    assert paces.arrive(BOB, 1, 0.001, 0), "it is no debt of others"
    assert paces.due(4.01) == [1]


def test_classes_without_a_pace_never_wait() -> None:
    paces = Paces[int](PACING)
    assert all(paces.arrive(NODE, number, 1.0, 0) for number in range(100))
    paces.end(NODE)
    paces.charge(NODE, 1.0, 0)
    paces.leave(NODE, 1)
    assert len(paces) == 0


def test_memory_is_bounded_and_callers_who_wait_are_not_forgotten() -> None:
    paces = Paces[int](PACING, max_callers=10)
    for number in range(3):
        paces.arrive(ADA, number, 0.01, 0)
    for number in range(1000):
        other = Caller(CallerClass.USER, f"user-{number}")
        assert paces.arrive(other, number, 0.01, 0)
        paces.end(other)
    assert len(paces) <= 11
    paces.end(ADA)
    assert paces.due(1) == [2]


@given(st.lists(st.tuples(st.sampled_from("aeld"), st.sampled_from([ADA, BOB]), st.floats(0, 0.2)), max_size=80))
def test_every_call_begins_once_in_order_unless_it_leaves(steps: list[tuple[str, Caller, float]]) -> None:
    paces, now, number = Paces[int](PACING), 0.0, itertools.count()
    running: Counter[Caller] = Counter()
    waiting: dict[Caller, deque[int]] = {ADA: deque(), BOB: deque()}
    owner: dict[int, Caller] = {}

    def begin(tickets: list[int]) -> None:
        for ticket in tickets:
            caller = owner[ticket]
            assert waiting[caller].popleft() == ticket
            running[caller] += 1
            assert running[caller] <= PACING[CallerClass.USER].at_a_time

    for step, caller, pause in steps:
        now += pause
        if step == "a":
            ticket = next(number)
            owner[ticket] = caller
            waiting[caller].append(ticket)
            if paces.arrive(caller, ticket, 0.05, now):
                begin([ticket])
        elif step == "e" and running[caller]:
            paces.end(caller)
            running[caller] -= 1
        elif step == "l" and waiting[caller]:
            paces.leave(caller, waiting[caller].pop())
        begin(paces.due(now))
    for _ in range(200):
        for caller in (ADA, BOB):
            while running[caller]:
                paces.end(caller)
                running[caller] -= 1
        now += 1 if paces.next_due(now) is None else 0.001 + (paces.next_due(now) or 0.0)
        begin(paces.due(now))
    assert not any(waiting.values())
    assert paces.next_due(now) is None


def test_places_go_to_callers_in_turn_and_not_to_the_calls_that_came_first() -> None:
    turns = Turns[str](1, quantum=0.006)
    assert turns.arrive(EVE, "eve", 0.006)
    assert not any(turns.arrive(EVE, f"eve {number}", 0.006) for number in range(300))
    assert not turns.arrive(ADA, "ada", 0.002)
    assert not turns.arrive(BOB, "bob", 0.006)
    assert {turns.end(), turns.end(), turns.end()} == {"eve 0", "ada", "bob"}


def test_calls_that_cost_more_have_fewer_turns() -> None:
    turns = Turns[Caller](1)
    assert turns.arrive(BOB, BOB, 0)
    for _ in range(1000):
        turns.arrive(ADA, ADA, 0.002)
        turns.arrive(EVE, EVE, 0.1)
    served = Counter(turns.end() for _ in range(510))
    assert served[EVE] == pytest.approx(10, abs=1)
    assert served[ADA] == pytest.approx(500, abs=1)


def test_a_call_that_leaves_has_no_turn_and_a_free_place_is_taken_at_once() -> None:
    turns = Turns[int](1)
    assert turns.arrive(ADA, 0, 1.0)
    assert not turns.arrive(ADA, 1, 1.0)
    assert not turns.arrive(ADA, 2, 1.0)
    turns.leave(ADA, 1)
    turns.leave(BOB, 7)
    assert turns.end() == 2
    assert turns.end() is None
    assert len(turns) == 0
    assert turns.arrive(BOB, 3, 1.0)


def test_no_user_can_hold_all_places_and_places_are_no_more_than_connections() -> None:
    assert DEFAULT_PACING[CallerClass.USER].at_a_time < PLACES[CallerClass.USER] <= POOL_SIZES[Lane.USERS]
    # A user's lists and bulk calls that run leave a place to the user's other calls.
    assert DEFAULT_LIMITS[CallerClass.USER, Weight.HEAVY].at_a_time < DEFAULT_PACING[CallerClass.USER].at_a_time


class Loop:
    """A process with one event loop on virtual time: a call works on it, asks the database, and works on it again."""

    ANSWER_SECONDS = 0.005

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._free_at = 0.0

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), event))

    def work(self, seconds: float, then: Callable[[], None]) -> None:
        """Does a piece of work after all that waits already."""
        self._free_at = max(self._free_at, self.now) + seconds
        self.at(self._free_at, then)

    def serve(self, cost: float, then: Callable[[], None]) -> None:
        def answered() -> None:
            self.work(cost / 2, then)

        self.work(cost / 2, lambda: self.at(self.now + self.ANSWER_SECONDS, answered))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()


def latencies(burst: int, weight: Weight, *, paced: bool) -> list[float]:
    """Seconds that ada's calls take, one each 40 ms, while eve has `burst` calls open and repeats each at once."""
    loop, paces, turns = Loop(), Paces[Callable[[], None]](), Turns[Callable[[], None]](PLACES[CallerClass.USER])
    took: list[float] = []
    timer = 0

    def pump(number: int | None = None) -> None:
        nonlocal timer
        if number not in (None, timer):
            # Another timer has been set since.
            return
        for begin in paces.due(loop.now):
            begin()
        timer += 1
        if (seconds := paces.next_due(loop.now)) is not None:
            loop.at(loop.now + max(seconds, 0.001), partial(pump, timer))

    def call(caller: Caller, cost: float, then: Callable[[], None]) -> None:
        def ended() -> None:
            if paced:
                if (following := turns.end()) is not None:
                    following()
                paces.end(caller)
                pump()
            then()

        def serve() -> None:
            loop.serve(cost, ended)

        def begin() -> None:
            if turns.arrive(caller, serve, cost):
                serve()

        if not paced:
            serve()
        elif paces.arrive(caller, begin, cost, loop.now):
            begin()
        else:
            pump()

    def repeat() -> None:
        call(EVE, COSTS[weight], repeat)

    def measure() -> None:
        began = loop.now
        # Since her first call has told that she is there.
        call(ADA, COSTS[Weight.LIGHT], lambda: took.append(loop.now - began) if began > 5 else None)
        loop.at(loop.now + 0.04, measure)

    measure()
    for _ in range(burst):
        loop.at(1.0, repeat)
    loop.run(25.0)
    return sorted(took)


@pytest.mark.attack("bursts-of-one-user")
@pytest.mark.parametrize("weight", [Weight.LIGHT, Weight.WRITE, Weight.HEAVY])
def test_beside_a_burst_of_another_user_calls_take_less_than_twice_as_long(weight: Weight) -> None:
    alone = latencies(0, weight, paced=True)
    beside = latencies(300, weight, paced=True)
    unpaced = latencies(300, weight, paced=False)
    assert len(alone) == len(beside) > 400
    last = round(0.99 * len(alone))
    assert beside[last] < 2 * alone[last]
    # First come, first served, as it was: there is something to hold back.
    assert unpaced[0] > 20 * alone[last]
