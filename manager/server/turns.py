"""Decides when calls begin, so that no caller's calls hold up those of others. Pure, with the time passed in.

The one event loop of a process and the connections of a lane are what calls share. A call first waits until its caller
may make it (`Paces`): so few of each caller run at a time, and while others call too, a caller gets a share of the
loop, counted by what its calls cost. Once its request is there, a call waits for one of the places in its lane
(`Turns`): callers get these in turn, by deficit round robin (Shreedhar and Varghese, 1995), not first come.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from retinue.manager.server.call_limits import Caller, CallerClass

# A caller counts as one that calls for so long after a call.
ACTIVE_SECONDS = 10.0
_MAX_CALLERS = 10_000
# However much one call has cost, its caller's next one waits for no longer than this is made up for.
_MAX_DEBT_SECONDS = 1.0
# What a caller's deficit grows by in each round: an ordinary write.
_QUANTUM_SECONDS = 0.005

Ticket = TypeVar("Ticket")


@dataclass(frozen=True, slots=True)
class Pace:
    """At most `at_a_time` calls run. While others call too, they cost `share` seconds of the loop a second, and
    `burst` seconds at once.
    """

    at_a_time: int
    share: float
    burst: float


Pacing = Mapping[CallerClass, Pace]

DEFAULT_PACING: Pacing = {
    CallerClass.USER: Pace(at_a_time=4, share=0.25, burst=0.5),
    CallerClass.ADMIN: Pace(at_a_time=16, share=0.5, burst=2.0),
}


@dataclass(slots=True)
class _Waiting(Generic[Ticket]):
    ticket: Ticket
    cost: float
    # It counts among those that run.
    counts: bool


@dataclass(slots=True)
class _Account(Generic[Ticket]):
    # Seconds of the loop that the caller may spend; below 0, so many were spent too early.
    credit: float
    at: float
    called: float
    running: int = 0
    waiting: deque[_Waiting[Ticket]] = field(default_factory=deque)


class Paces(Generic[Ticket]):
    """Holds back the calls of each caller, in order of arrival; the calls of classes without a pace never wait."""

    def __init__(self, pacing: Pacing = DEFAULT_PACING, max_callers: int = _MAX_CALLERS) -> None:
        self._pacing = pacing
        self._max_callers = max_callers
        # The one that called last is at the end.
        self._accounts: OrderedDict[Caller, _Account[Ticket]] = OrderedDict()
        self._held: dict[Caller, None] = {}

    def arrive(self, caller: Caller, ticket: Ticket, cost: float, now: float, *, counts: bool = True) -> bool:
        """Returns whether a call begins at once, at `now` in seconds; else it waits until `due` returns its ticket.

        `cost` is in seconds of the loop. A call that `counts` is among those that run until its `end`.
        """
        if (pace := self._pacing.get(caller.kind)) is None:
            return True
        account = self._accounts.get(caller) or _Account[Ticket](pace.burst, now, now)
        account.called = now
        self._accounts[caller] = account
        self._accounts.move_to_end(caller)
        self._forget_idle()
        call = _Waiting(ticket, cost, counts)
        if not account.waiting and self._may_begin(caller, account, call, now):
            self._begin(caller, account, call, now)
            return True
        account.waiting.append(call)
        self._held[caller] = None
        return False

    def leave(self, caller: Caller, ticket: Ticket) -> None:
        """Forgets a call that waits no longer."""
        account = self._accounts.get(caller)
        if account is not None:
            account.waiting = deque(call for call in account.waiting if call.ticket is not ticket)
            if not account.waiting:
                self._held.pop(caller, None)

    def end(self, caller: Caller) -> None:
        """Counts the end of a call that counts among those that run."""
        if caller.kind in self._pacing:
            self._accounts[caller].running -= 1

    def charge(self, caller: Caller, cost: float, now: float) -> None:
        """Counts what a call has cost beyond what was known at its beginning."""
        account = self._accounts.get(caller)
        if account is not None:
            self._spend(caller, account, cost, now)

    def due(self, now: float) -> list[Ticket]:
        """Returns the calls that begin now."""
        begun: list[Ticket] = []
        for caller in list(self._held):
            account = self._accounts[caller]
            while account.waiting and self._may_begin(caller, account, account.waiting[0], now):
                call = account.waiting.popleft()
                self._begin(caller, account, call, now)
                begun.append(call.ticket)
            if not account.waiting:
                del self._held[caller]
        return begun

    def next_due(self, now: float) -> float | None:
        """Returns in how many seconds `due` may return something, if no call ends before; None: not before one does."""
        waits = [
            max(0.0, -account.credit / self._pacing[caller.kind].share)
            for caller in self._held
            if (account := self._refreshed(caller, now)).running < self._pacing[caller.kind].at_a_time
            or not account.waiting[0].counts
        ]
        return min(waits, default=None)

    def waiting(self, caller: Caller) -> int:
        """Returns how many calls of a caller wait."""
        account = self._accounts.get(caller)
        return 0 if account is None else len(account.waiting)

    def __len__(self) -> int:
        return len(self._accounts)

    def _may_begin(self, caller: Caller, account: _Account[Ticket], call: _Waiting[Ticket], now: float) -> bool:
        if call.counts and account.running >= self._pacing[caller.kind].at_a_time:
            return False
        return self._refreshed(caller, now).credit >= 0 or not self._others_call(caller, now)

    def _begin(self, caller: Caller, account: _Account[Ticket], call: _Waiting[Ticket], now: float) -> None:
        account.running += call.counts
        self._spend(caller, account, call.cost, now)

    def _spend(self, caller: Caller, account: _Account[Ticket], cost: float, now: float) -> None:
        # Nobody waits for what is spent alone: no debt.
        floor = -_MAX_DEBT_SECONDS if self._others_call(caller, now) else 0.0
        account.credit = max(self._refreshed(caller, now).credit - cost, floor)

    def _refreshed(self, caller: Caller, now: float) -> _Account[Ticket]:
        account, pace = self._accounts[caller], self._pacing[caller.kind]
        account.credit = min(pace.burst, account.credit + (now - account.at) * pace.share)
        account.at = now
        return account

    def _others_call(self, caller: Caller, now: float) -> bool:
        """Returns whether another caller has called lately: one of the last two is another."""
        for other in reversed(self._accounts):
            if other != caller:
                return now - self._accounts[other].called < ACTIVE_SECONDS
        return False

    def _forget_idle(self) -> None:
        for _ in range(min(len(self._accounts) - self._max_callers, 8)):
            caller, account = self._accounts.popitem(last=False)
            if account.running or account.waiting:
                self._accounts[caller] = account


class Turns(Generic[Ticket]):
    """Gives a number of places to calls; those that wait get one in turns of their callers, by what they cost."""

    def __init__(self, places: int, quantum: float = _QUANTUM_SECONDS) -> None:
        """In each round, a caller's calls may cost `quantum` seconds more."""
        self._free = places
        self._quantum = quantum
        # The caller whose turn it is comes first.
        self._waiting: OrderedDict[Caller, deque[tuple[Ticket, float]]] = OrderedDict()
        self._deficits: dict[Caller, float] = {}

    def arrive(self, caller: Caller, ticket: Ticket, cost: float) -> bool:
        """Returns whether a call has a place at once; else it waits until `end` returns its ticket."""
        if self._free > 0:
            self._free -= 1
            return True
        self._waiting.setdefault(caller, deque()).append((ticket, cost))
        self._deficits.setdefault(caller, 0.0)
        return False

    def leave(self, caller: Caller, ticket: Ticket) -> None:
        """Forgets a call that waits no longer."""
        if (line := self._waiting.get(caller)) is not None:
            self._waiting[caller] = deque(call for call in line if call[0] is not ticket)
            self._drop_empty(caller)

    def end(self) -> Ticket | None:
        """Gives the place of a call that has ended to the next one and returns that one's ticket; None without one."""
        while self._waiting:
            caller, line = next(iter(self._waiting.items()))
            ticket, cost = line[0]
            if cost <= self._deficits[caller]:
                line.popleft()
                self._deficits[caller] -= cost
                self._drop_empty(caller)
                return ticket
            self._deficits[caller] += self._quantum
            self._waiting.move_to_end(caller)
        self._free += 1
        return None

    def _drop_empty(self, caller: Caller) -> None:
        if not self._waiting[caller]:
            del self._waiting[caller], self._deficits[caller]

    def __len__(self) -> int:
        """Returns how many callers wait."""
        return len(self._waiting)
