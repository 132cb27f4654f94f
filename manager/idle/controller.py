"""Ends running sessions that are idle, by the policies of their groups, after having warned them.
Only the leader does it.

What decides is pure (`idle`, `utilization`); here is read what they look at, and done what they say.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING

from retinue.manager.domain.idle import policy as idle
from retinue.manager.domain.idle.policy import Checker, IdlePolicy, SessionObservation, Verdict
from retinue.manager.domain.session.states import SessionType
from retinue.manager.idle.measurements import Measurements
from retinue.manager.session.transaction import load_for_update, save
from retinue.manager.store.leadership import leadership
from retinue.manager.store.placement import attempts
from retinue.manager.store.postgres.documents import Unreadable
from retinue.manager.store.sessions import conditions
from retinue.manager.store.sessions import idle as idle_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.domain.idle.utilization import Reading
    from retinue.manager.domain.session.attempts import AttemptUsage
    from retinue.manager.store.postgres.database import Database
    from retinue.manager.store.sessions.idle import RunningSession

_log = logging.getLogger(__name__)

# Seconds between two looks: as soon as something can be due, and within these;
# and at least so many times what a look takes.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _REST = 0.5, 5.0, 10.0
# Between two records of a look while no policy has a limit; whether one has is looked for meanwhile.
_LONGEST_WITHOUT_POLICIES = 60.0
# A look that comes so much later than it was meant to: the process stood still.
_STOOD_STILL = 20.0
# Sessions that are evaluated in one batch: other work does not wait for long.
_PAGE = 250
_TYPES = frozenset[SessionType]().union(*idle.LOOKS_AT.values())


class Policies:
    """All policies, as they were read at one time."""

    def __init__(
        self, groups: Mapping[str, IdlePolicy | Unreadable], users: Mapping[str, IdlePolicy | Unreadable]
    ) -> None:
        self.groups = {name: _policy(f"group {name}", stored) for name, stored in groups.items()}
        self.users = {name: _policy(f"user {name}", stored) for name, stored in users.items()}
        self._merged: dict[tuple[str, str], IdlePolicy] = {}

    def of(self, group: str, owner: str) -> IdlePolicy:
        """The policy for sessions of a user in a group."""
        override, of_group = self.users.get(owner, idle.NOTHING), self.groups.get(group, idle.NOTHING)
        if override is None or of_group is None:
            # What cannot be read may be what keeps the session.
            return idle.NOTHING
        if owner not in self.users:
            return of_group
        if (merged := self._merged.get((group, owner))) is None:
            merged = self._merged[group, owner] = of_group.then(override)
        return merged

    def timeouts(self) -> Mapping[tuple[str, str], float | None]:
        """Returns how long sessions may go without an interaction, by group or user."""
        named = (*(("group", *item) for item in self.groups.items()), *(("user", *item) for item in self.users.items()))
        return {(kind, name): policy.limit(Checker.INTERACTION) for kind, name, policy in named if policy is not None}

    def limits(self) -> list[float]:
        """Returns the limits of all policies and overrides, each by itself, in seconds."""
        each = [policy for policy in (*self.groups.values(), *self.users.values()) if policy is not None]
        return [limit for policy in each for checker in Checker if (limit := policy.limit(checker))]


def _policy(whose: str, stored: IdlePolicy | Unreadable) -> IdlePolicy | None:
    """Returns a policy; None, with a log line, for one that this version cannot read: nothing is ended by it."""
    if isinstance(stored, Unreadable):
        _log.error("the idle policy of %s ends nothing: %s", whose, stored.error)
        return None
    return stored


def seen_in(row: RunningSession, reading: Reading | None = None) -> SessionObservation:
    """A row of `read_running` as a policy looks at it; with a reading that is newer than the one kept."""
    return SessionObservation(
        type=SessionType(row.type),
        start=row.start,
        interaction=row.interaction,
        paused=row.paused,
        reachable=row.reachable,
        extension_end_time=row.extension_end_time,
        warned={Checker(name): at for name, at in row.warned.items()},
        reading=reading or row.reading,
    )


class IdleController:
    """Looks at all running sessions that a policy concerns, again and again."""

    def __init__(
        self,
        database: Database,
        term: int,
        committed: Callable[[Affected], None],
        watch_usage: Callable[[Mapping[str, float]], None],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        out_of_bounds: Callable[[str, int], None] = lambda _agent, _attempts: None,
    ) -> None:
        """`watch_usage` is called with the agents that have to report what their attempts use, and every how many
        seconds, `out_of_bounds` with an agent that reports on attempts of others, and on how many.
        """
        self._out_of_bounds = out_of_bounds
        self._database = database
        self._term = term
        self._committed = committed
        self._watch_usage = watch_usage
        self._monotonic = monotonic
        # When it was looked last, and how long a pause was meant to be made then.
        self._looked: float | None = None
        self._pause = 0.0
        self._measurements = Measurements()
        # The timeouts that hold, and since when: by the database's clock, and never before the first look.
        self._timeouts: Mapping[tuple[str, str], float | None] | None = None
        self._changed = 0.0
        self._has_limits = True

    def used(self, agent_id: str, samples: Iterable[AttemptUsage]) -> None:
        """An agent says what its attempts have used."""
        if strays := self._measurements.add(agent_id, samples):
            self._out_of_bounds(agent_id, strays)

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            began = self._monotonic()
            pause = await self.look()
            # However many sessions there are, most of the time is not spent on looking at them.
            self._pause = max(pause, _REST * (self._monotonic() - began))
            if self._has_limits:
                await asyncio.sleep(self._pause)
            else:
                self._pause = _LONGEST_WITHOUT_POLICIES
                await self._rest_without_policies(began + self._pause)

    async def _rest_without_policies(self, until: float) -> None:
        writes = self._database.writes
        while (left := until - self._monotonic()) > 0:
            seen = writes.number
            async with self._database.transaction() as tx:
                if Policies(*await idle_store.read_policies(tx)).limits():
                    return
            await writes.rest(asyncio.Event(), seen, min(left, _LONGEST_PAUSE), left)

    async def look(self) -> float:
        """Looks once; returns after how many seconds something can be due."""
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            before, now = await idle_store.note_look(tx)
            moment = self._monotonic()
            elapsed = 0.0 if self._looked is None else moment - self._looked
            self._looked = moment
            policies = Policies(*await idle_store.read_policies(tx))
            if (timeouts := policies.timeouts()) != self._timeouts:
                self._timeouts, self._changed = timeouts, now
            if lost := idle.unwatched(before, now, elapsed, self._pause + _STOOD_STILL):
                _log.info("no agent was listened to for %.0f s, which count as idle for no session", lost)
                await idle_store.pause(tx, lost)
        passed = 0.0 if before is None or lost else now - before
        # Sessions begin without a word here, and warnings come before ends:
        # a part of what is left is soon enough for both.
        soon = [limit / 8 for limit in policies.limits()]
        self._has_limits = bool(soon)
        after: uuid.UUID | None = uuid.UUID(int=0)
        self._measurements.begin()
        while after is not None and soon:
            after, left = await self._look_at_page(policies, after, passed)
            if left is not None:
                soon.append(left / 2)
        intervals = self._measurements.finish()
        self._watch_usage(intervals)
        return min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, min([*soon, *intervals.values()], default=_LONGEST_PAUSE)))

    async def _look_at_page(
        self, policies: Policies, after: uuid.UUID, passed: float
    ) -> tuple[uuid.UUID | None, float | None]:
        """Looks at some sessions, in the order of their ids; returns the last of them (None: there are no more), and
        after how many seconds something can be due. `passed` are the seconds since the last look.
        """
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            rows = await idle_store.read_running(
                tx, _TYPES, groups=policies.groups, owners=policies.users, after=after, limit=_PAGE
            )
            now = await idle_store.read_now(tx)
            silent = [row.id for row in rows if not row.reachable]
            if silent and passed:
                await idle_store.pause(tx, passed, silent)
            await self._measurements.take_in(tx, rows, policies.of, now)
        last = rows[-1].id if len(rows) == _PAGE else None
        verdicts = {row.id: verdict for row in rows if (verdict := self._evaluate(policies, row, now)) is not None}
        rows = [row for row in rows if row.id in verdicts]
        await self._warn(rows, verdicts, now)
        for session_id, verdict in verdicts.items():
            if verdict.end is not None:
                await self._end(session_id, policies)
        due = [left for verdict in verdicts.values() if (left := verdict.next_look) is not None]
        return last, min(due, default=None)

    def _evaluate(self, policies: Policies, row: RunningSession, now: float) -> Verdict | None:
        """Returns what is to become of a session; None for one that cannot be read, which continues."""
        try:
            policy = policies.of(row.resource_group, row.owner)
            return idle.evaluate(policy, seen_in(row, self._measurements.reading(row.id)), now, self._changed)
        except Exception as error:  # noqa: BLE001  # logged; the other sessions are evaluated
            _log.error("session %s is not ended for being idle: %r", row.id, error)
            return None

    async def _warn(self, rows: Iterable[RunningSession], verdicts: Mapping[uuid.UUID, Verdict], now: float) -> None:
        """Gives warnings and takes them back, with the journal, in one commit."""
        warned: dict[uuid.UUID, dict[str, float]] = {}
        texts: dict[uuid.UUID, dict[str, str]] = {}
        for row in rows:
            verdict = verdicts[row.id]
            if verdict.end is not None or not (verdict.warn or verdict.take_back):
                continue
            kept = {name: at for name, at in row.warned.items() if Checker(name) not in verdict.take_back}
            warned[row.id] = {**kept, **{check.checker: now for check in verdict.warn}}
            texts[row.id] = {
                **{idle.WARNINGS[checker]: "" for checker in verdict.take_back},
                **{idle.WARNINGS[check.checker]: idle.warning_text(check, now) for check in verdict.warn},
            }
        if not warned:
            return
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await idle_store.set_warned(tx, warned)
            await conditions.set_texts(tx, texts)
        self._committed({})

    async def _end(self, session_id: uuid.UUID, policies: Policies) -> None:
        """Ends a session, unless it was used or extended since it was evaluated."""
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            taken = await load_for_update(tx, [session_id])
            rows = await idle_store.read_running(tx, _TYPES, session_ids=[session_id])
            if not rows or session_id not in taken.machines:
                return
            row, now = rows[0], await idle_store.read_now(tx)
            policy = policies.of(row.resource_group, row.owner)
            check = idle.evaluate(policy, seen_in(row, self._measurements.reading(session_id)), now, self._changed).end
            if check is None:
                return
            _log.info("session %s is ended: %s", session_id, check.measured)
            taken.machines[session_id].end_by_policy(idle.REASONS[check.checker], check.measured)
            await save(tx, taken)
            affected = await attempts.find_affected_agents(tx, [session_id])
        self._committed(affected)
