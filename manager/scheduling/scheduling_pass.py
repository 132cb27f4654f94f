"""One scheduling pass: from columns to decisions, without touching the outside world.

`run_pass` chains the two levels: `selection` says which session is next, `placement` finds its agents. Its answer stays
in arrays; reasons of sessions that were not placed are worked out when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.scheduling.capacity import CapacityView
from retinue.manager.scheduling.columns import (
    UNPLACED,
    Agents,
    Explanation,
    Integers,
    Mask,
    Owners,
    Queue,
    Running,
    Verdict,
)
from retinue.manager.scheduling.custom import Advice, StrategyFailures, checked_order
from retinue.manager.scheduling.preemption import Preemption, preempt
from retinue.manager.scheduling.quotas import QuotaBudget
from retinue.manager.scheduling.reasons import (
    STRATEGY_DECLINED,
    Explainer,
    behind,
    behind_reservation,
    has_reservation,
    preempting,
)
from retinue.manager.scheduling.reservation import Backfill, Reservation, aged_head, reserve
from retinue.manager.scheduling.scored import Scoring
from retinue.manager.scheduling.selection import Line, select
from retinue.manager.scheduling.shares import shared_capacity
from retinue.manager.scheduling.strategies import EXTERNAL, FIFO, OFF, Settings, validate_policy
from retinue.manager.scheduling.view import Choices, View, requests_of, waiting_sessions

if TYPE_CHECKING:
    from retinue.manager.scheduling.equivalence import EquivalenceClass
    from retinue.manager.scheduling.free import Free
    from retinue.manager.scheduling.placement import Placement


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of a pass."""

    # Rows of the sessions placed, in order of decision.
    sessions: Integers
    # By kernel (row of `Queue.requests`): row of its agent, or UNPLACED.
    kernel_agents: Integers
    # What each owner holds with the decisions: U x S.
    held: Integers
    # By session: a Verdict.
    verdicts: NDArray[np.int8]
    # Id of the agent that `round-robin` chose last; give it to the next pass.
    round_robin_cursor: str
    # Room in the future for the first aged session that found none.
    reservation: Reservation | None
    # Who is to make way for whom.
    preemptions: tuple[Preemption, ...]
    # What went wrong with strategies of others, in words.
    failures: tuple[str, ...]
    _view: View = field(repr=False)
    _backfill: Backfill | None = field(repr=False)
    _explainers: dict[int, Explainer] = field(repr=False)
    _behind: Explanation | None = field(repr=False)
    _quotas_left: QuotaBudget | None = field(repr=False)

    def explain(self, session: int) -> Explanation | None:
        """Returns why the session in a row of the queue waits; None when it was placed.
        Sessions of one kind share one object.
        """
        verdict = self.verdicts[session]
        if verdict == Verdict.PLACED:
            return None
        why = self._why(session, verdict)
        if why is None or not self.failures:
            return why
        return replace(why, message="; ".join([why.message, *self.failures]))

    def _why(self, session: int, verdict: int) -> Explanation | None:
        queue = self._view.queue
        if verdict == Verdict.HELD_BACK:
            return queue.held_back[session]
        if verdict == Verdict.NOMINATED:
            return preempting([self._view.agents.ids[row] for row in queue.nominated[session]])
        return self._behind if verdict == Verdict.BEHIND else self._of_kind(session, verdict)

    def alike(self) -> Integers:
        """Returns by session integers that are equal for sessions of one explanation,
        as far as that does not hang on quotas or on itself alone.
        """
        sessions = len(self.verdicts)
        kinds, closed, alone = (np.full(sessions, -1, np.int64) for _ in range(3))
        kinds[self._view.rows] = self._view.kind_of
        if self._backfill is not None:
            closed[self._backfill.closed.rows] = self._backfill.closed.kind_of
        if self.reservation is not None:
            alone[self.reservation.session] = 0
        own = np.flatnonzero((self.verdicts == Verdict.HELD_BACK) | (self.verdicts == Verdict.NOMINATED))
        alone[own] = own + 1
        if self._view.choices is not None:
            refused = np.fromiter(self._view.choices.refused, np.int64)
            alone[refused] = refused + 1
        return np.column_stack((self.verdicts.astype(np.int64), kinds, closed, alone))

    def _of_kind(self, session: int, verdict: int) -> Explanation:
        queue = self._view.queue
        view = self._view if self._backfill is None else self._backfill.view_of(session)
        kind = view.kinds[session]
        why = self._explainers[id(view)].explain(kind, queue.wishes.get(session))
        if verdict == Verdict.OVER_QUOTA and self._quotas_left is not None and why.tier is not Tier.CONFIGURATION:
            return self._quotas_left.explain(session, kind)
        choices = view.choices
        if choices is not None and session in choices.refused and why.tier is Tier.CAPACITY:
            return Explanation(Tier.POLICY, STRATEGY_DECLINED, choices.refused[session])
        if self.reservation is not None and why.tier is Tier.CAPACITY:
            return self._reserved(self.reservation, session, why)
        return why

    def _reserved(self, reservation: Reservation, session: int, why: Explanation) -> Explanation:
        """Returns what a reservation adds to a reason: the session has it, or has to leave room for it."""
        queue = self._view.queue
        agents = sorted({self._view.agents.ids[row] for row in reservation.agents.tolist()})
        if session == reservation.session:
            return has_reservation(why, agents, reservation.after)
        if self._backfill is None or self._backfill.view_of(session) is self._view:
            return why
        kind = self._view.kinds[session]
        open_view = self._explainers[id(self._view)].explain(kind, queue.wishes.get(session))
        if open_view.tier is Tier.CAPACITY and not open_view.shortfalls:
            return behind_reservation(queue.ids[reservation.session], agents, reservation.after)
        return open_view


def run_pass(
    agents: Agents,
    owners: Owners,
    queue: Queue,
    policy: Policy,
    round_robin_cursor: str = "",
    *,
    running: Running | None = None,
    advice: Advice | None = None,
) -> Decisions:
    """Decides which waiting sessions go where now. `round_robin_cursor` is that of the last pass; without
    `running` there are neither reservations nor preemption. `advice` is what external strategies say.

    Raises PolicyError on a bad policy and ValueError when columns do not match.
    """
    settings = validate_policy(policy)
    _check(agents, owners, queue)
    return _Pass(agents, owners, queue, settings, round_robin_cursor, advice or Advice()).run(running)


class _Pass:
    """A pass under way."""

    def __init__(  # noqa: PLR0917  # the arguments of a pass
        self, agents: Agents, owners: Owners, queue: Queue, settings: Settings, round_robin_cursor: str, advice: Advice
    ) -> None:
        self.owners, self.queue, self.round_robin_cursor, self.advice = owners, queue, round_robin_cursor, advice
        self.failures = StrategyFailures()
        scoring = choices = None
        if settings.custom_agent is not None:
            scoring = Scoring(settings.custom_agent, settings.agent_strategy, self.failures)
        elif settings.agent_strategy == EXTERNAL:
            if advice.placements is not None:
                choices = Choices(advice.placements)
            else:
                self.failures.failed("external agent strategy", advice.placements_failure, settings.agent_fallback)
            settings = replace(settings, agent_strategy=settings.agent_fallback)
        self.settings = settings
        # Nominated capacity is in use for all but the session that it is held for.
        self.agents = agents if not queue.nominated else _with_nominated(agents, queue)
        self.verdicts = np.full(len(queue.owners), Verdict.NO_ROOM, np.int8)
        if queue.held_back:
            self.verdicts[list(queue.held_back)] = Verdict.HELD_BACK
        rows = np.flatnonzero(self.verdicts == Verdict.NO_ROOM)
        self.view = View(self.agents, queue, rows, settings, round_robin_cursor, scoring=scoring, choices=choices)
        self.quotas = None if queue.quotas is None else QuotaBudget(queue.quotas, agents.slots, self.view.columns)
        self.over_quota: set[int] = set()
        self.placed: list[int] = []
        # By placed session: rows of the agents of its kernels, or numbers of agents as the view has them.
        self.placements: list[Placement] = []
        self.backfill: Backfill | None = None
        self.reservation: Reservation | None = None
        # A session with nominated agents goes there; the rest of the pass is about the others.
        self.kept = self._place_nominated()

    def run(self, running: Running | None) -> Decisions:
        """Decides."""
        settings, view, verdicts = self.settings, self.view, self.verdicts
        rows = (
            view.rows[~np.isin(view.rows, np.fromiter(self.kept, np.int64, len(self.kept)))] if self.kept else view.rows
        )
        without_agents = _without_agents(self.queue, view.rows, view.found, view.kind_of, view.free)
        verdicts[view.rows[without_agents]] = Verdict.NO_AGENT
        if self.kept:
            verdicts[list(self.kept)] = Verdict.NOMINATED
        rows = rows[verdicts[rows] == Verdict.NO_ROOM]
        aged = aged_head(self.queue, rows, settings) if settings.reserves and running is not None else None
        if aged is None or running is None:
            head, waiting = select(self._line(rows), self.settings)
        else:
            head, waiting = self._around(aged, rows, running)
        verdicts[waiting] = Verdict.BEHIND
        verdicts[list(self.over_quota)] = Verdict.OVER_QUOTA
        sessions = np.array(self.placed, np.int64)
        verdicts[sessions] = Verdict.PLACED
        kernel_agents, held = _account(self.queue, self.owners, view.free, sessions, self.placements)
        preemptions: tuple[Preemption, ...] = ()
        if settings.preemption != OFF and running is not None:
            preemptions = self._preempt(running)
        explainers = {
            id(each): Explainer(each) for each in (view, *([] if self.backfill is None else [self.backfill.closed]))
        }
        return Decisions(
            sessions=sessions,
            kernel_agents=kernel_agents,
            held=held,
            verdicts=verdicts,
            round_robin_cursor=view.round_robin_cursor or self.round_robin_cursor,
            reservation=self.reservation,
            preemptions=preemptions,
            failures=tuple(self.failures.messages),
            _view=view,
            _backfill=self.backfill,
            _explainers=explainers,
            _behind=None if head is None else behind(self.queue.ids[head]),
            _quotas_left=self.quotas,
        )

    def _attempt(self, row: int) -> EquivalenceClass | None:
        kind = self.view.kinds[row]
        if self.quotas is not None and not self.quotas.admits(row, kind):
            self.over_quota.add(row)
            return None
        if kind.failed:
            return None
        placement = self.view.place(row) if self.backfill is None else self.backfill.place(row)
        if placement == UNPLACED:
            return None
        self._keep(row, placement)
        return kind

    def _keep(self, row: int, placement: Placement) -> None:
        self.placed.append(row)
        self.placements.append(placement)
        if self.quotas is not None:
            self.quotas.charge(row, self.view.kinds[row])

    def _line(self, rows: Integers, *, backfill: bool = False) -> Line:
        owners = self.owners
        if self.placed:
            sessions = np.array(self.placed, np.int64)
            owners = replace(owners, held=_account(self.queue, owners, self.view.free, sessions, self.placements)[1])
        return Line(
            queue=self.queue,
            owners=owners,
            rows=rows,
            capacity=shared_capacity(self.agents, self.view.columns),
            columns=self.view.columns,
            attempt=self._attempt,
            over_quota=self.over_quota,
            backfill=backfill,
            given=self._given(rows, owners),
        )

    def _given(self, rows: Integers, owners: Owners) -> list[int] | None:
        """Returns the rows in the order that a strategy of others gives;
        None when the settings' strategy decides, or now has to.
        """
        settings = self.settings
        if settings.custom_session is None and settings.session_strategy != EXTERNAL:
            return None
        arrived = rows[np.argsort(self.queue.orders[rows])]
        try:
            if settings.custom_session is not None:
                order = settings.custom_session.order(waiting_sessions(self.view, arrived, owners))
                chosen: list[int] = arrived[checked_order(order, len(arrived))].tolist()
                return chosen
            return self._advised(arrived)
        except Exception as error:  # noqa: BLE001  # whatever others' code does, the pass continues
            why = str(error) if settings.custom_session is None else f"{type(error).__name__}: {error}"
            self.failures.failed(f"session strategy {settings.session_strategy}", why, settings.session_fallback)
            self.settings = replace(settings, session_strategy=settings.session_fallback, custom_session=None)
            return None

    def _advised(self, arrived: Integers) -> list[int]:
        order = self.advice.order
        if order is None:
            raise ValueError(self.advice.order_failure or "it was not asked")
        position_of = {session: position for position, session in enumerate(order)}
        if len(position_of) != len(order) or not position_of.keys() <= set(self.queue.ids):
            raise ValueError("it answered with sessions that do not wait, or with one twice")
        ids = {self.queue.ids[row]: row for row in arrived.tolist()}
        if not ids.keys() <= position_of.keys():
            raise ValueError("it left out sessions")
        return [ids[session] for session in sorted(ids, key=position_of.__getitem__)]

    def _around(self, aged: int, rows: Integers, running: Running) -> tuple[int | None, list[int]]:
        """Tries sessions of higher priority as ever, then the aged one,
        then the others around its reservation if it needs one.
        """
        above = self.queue.priorities[rows] > self.queue.priorities[aged]
        head, waiting = select(self._line(rows[above]), self.settings)
        rest = rows[~above & (rows != aged)]
        if head is not None:
            return head, [*waiting, aged, *rest.tolist()]
        if self._attempt(aged) is None and aged not in self.over_quota:
            situation = self._situation(running)
            self.reservation = reserve(situation, aged)
            if self.reservation is not None:
                self.backfill = Backfill(situation, self.view, self.reservation, rest)
            elif self.settings.session_strategy == FIFO and not self.settings.max_tries_before_skip:
                return aged, rest.tolist()
        return select(self._line(rest, backfill=self.backfill is not None), self.settings)

    def _situation(self, running: Running) -> CapacityView:
        """Returns what is in use now, with what was placed so far."""
        agents = self.agents
        if self.placed:
            used, kernels = agents.used.copy(), agents.kernels.copy()
            for row, placement in zip(self.placed, self.placements, strict=True):
                of_kernels = self.view.agents_of(row, placement)
                # Held capacity is in use already.
                if row not in self.kept:
                    np.add.at(used, of_kernels, requests_of(self.queue, row))
                    np.add.at(kernels, of_kernels, 1)
            agents = replace(agents, used=used, kernels=kernels)
        return CapacityView(
            agents,
            self.queue,
            self.settings,
            self.view.round_robin_cursor or self.round_robin_cursor,
            running,
            self.view.placer,
            self.view.scoring,
        )

    def _preempt(self, running: Running) -> tuple[Preemption, ...]:
        def admits(row: int) -> bool:
            kind = self.view.kinds[row]
            if self.quotas is None:
                return True
            if not self.quotas.admits(row, kind):
                return False
            self.quotas.charge(row, kind)
            return True

        waiting = np.flatnonzero(self.verdicts == Verdict.NO_ROOM)
        return tuple(preempt(self._situation(running), waiting, admits, self.view.kinds.__getitem__))

    def _place_nominated(self) -> set[int]:
        """Places the sessions whose nominated agents have their capacity free; returns all whose nomination stands."""
        queue, view, agents = self.queue, self.view, self.agents
        kept = set[int]()
        for row in sorted(queue.nominated, key=lambda row: (-queue.priorities[row], queue.orders[row])):
            if row not in view.kinds:
                continue
            kept.add(row)
            rows = np.array(queue.nominated[row], np.int64)
            # Capacity nominated to others is in use, its own is not.
            over = (agents.used - agents.capacity)[rows]
            asked = requests_of(queue, row) > 0
            most = self.settings.max_kernels_per_agent
            if self.quotas is not None and not self.quotas.admits(row, view.kinds[row]):
                self.over_quota.add(row)
            elif not (
                (over[asked] > 0).any()
                or not agents.schedulable[rows].all()
                or (most and (agents.kernels[rows] > most).any())
            ):
                numbers = np.argsort(view.free.rows)[rows]
                self._keep(row, numbers.tolist())
        return kept


def _with_nominated(agents: Agents, queue: Queue) -> Agents:
    """Returns the agents with the nominated capacity counted as used."""
    used, kernels = agents.used.copy(), agents.kernels.copy()
    for row, nominated in queue.nominated.items():
        np.add.at(used, np.array(nominated, np.int64), requests_of(queue, row))
        np.add.at(kernels, np.array(nominated, np.int64), 1)
    return replace(agents, used=used, kernels=kernels)


def _without_agents(
    queue: Queue, rows: Integers, found: list[EquivalenceClass], kind_of: Integers, free: Free
) -> NDArray[np.bool_]:
    """Returns which of the rows have no agent that could take them, whatever is free."""
    lacking = np.array([_lacks(kind, free, free.schedulable) for kind in found], np.bool_)
    without_agents = lacking[kind_of] if len(found) else np.zeros(len(rows), np.bool_)
    for session, wishes in queue.wishes.items():
        if wishes.strict and session not in queue.held_back:
            position = int(np.searchsorted(rows, session))
            without_agents[position] |= _lacks(
                found[int(kind_of[position])], free, np.isin(free.rows, np.array(wishes.designated, np.int64))
            )
    return without_agents


def _lacks(kind: EquivalenceClass, free: Free, among: Mask) -> bool:
    """Returns whether some kernel of a kind has no agent among these that could take it."""
    shapes = [kind.whole] if kind.single_node else [shape for shape, _ in kind.groups]
    return not all((free.takers(shape.needs) & among).any() for shape in shapes)


def _account(
    queue: Queue, owners: Owners, free: Free, sessions: Integers, placements: list[Placement]
) -> tuple[Integers, Integers]:
    """Returns the agent's row of each kernel, and what owners hold with the placements."""
    kernel_agents = np.full(len(queue.requests), UNPLACED, np.int64)
    held = owners.held.copy()
    if len(sessions):
        sizes = queue.offsets[sessions + 1] - queue.offsets[sessions]
        starts = np.cumsum(sizes) - sizes
        session_of_kernel = np.repeat(np.arange(len(sessions)), sizes)
        kernels = (
            queue.offsets[sessions][session_of_kernel] + np.arange(len(session_of_kernel)) - starts[session_of_kernel]
        )
        numbers: list[int] = []
        for placement, size in zip(placements, sizes.tolist(), strict=True):
            if isinstance(placement, int):
                numbers += [placement] * size
            else:
                numbers += placement
        kernel_agents[kernels] = free.rows[np.array(numbers, np.int64)]
        requests, holders = queue.requests[kernels], queue.owners[sessions][session_of_kernel]
        for column in range(held.shape[1]):
            np.add.at(held[:, column], holders, requests[:, column])
    return kernel_agents, held


def _check(agents: Agents, owners: Owners, queue: Queue) -> None:
    slots, count, sessions = len(agents.slots), len(agents.ids), len(queue.ids)
    expected: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        ("agents.capacity", agents.capacity.shape, (count, slots)),
        ("agents.used", agents.used.shape, (count, slots)),
        ("agents.schedulable", agents.schedulable.shape, (count,)),
        ("agents.architectures", (len(agents.architectures),), (count,)),
        ("agents.kernels", agents.kernels.shape, (count,)),
        ("owners.weights", owners.weights.shape, (len(owners.names),)),
        ("owners.held", owners.held.shape, (len(owners.names), slots)),
        ("queue.owners", queue.owners.shape, (sessions,)),
        ("queue.priorities", queue.priorities.shape, (sessions,)),
        ("queue.orders", queue.orders.shape, (sessions,)),
        ("queue.single_node", queue.single_node.shape, (sessions,)),
        ("queue.tries", queue.tries.shape, (sessions,)),
        ("queue.offsets", queue.offsets.shape, (sessions + 1,)),
        ("queue.requests", queue.requests.shape, (int(queue.offsets[-1]) if len(queue.offsets) else 0, slots)),
    ]
    if agents.offers is not None:
        expected.append(("agents.offers", agents.offers.shape, (count,)))
    if queue.needs is not None:
        expected.append(("queue.needs", queue.needs.shape, (len(queue.requests),)))
    if queue.quotas is not None:
        quotas = len(queue.quotas.names)
        expected += [
            ("quotas.limits", queue.quotas.limits.shape, (quotas, slots)),
            ("quotas.held", queue.quotas.held.shape, (quotas, slots)),
            ("quotas.session_limits", queue.quotas.session_limits.shape, (quotas,)),
            ("quotas.sessions", queue.quotas.sessions.shape, (quotas,)),
            ("quotas.of_sessions", (len(queue.quotas.of_sessions),), (sessions,)),
        ]
    for name, shape, wanted in expected:
        if shape != wanted:
            raise ValueError(f"{name} has shape {shape}, not {wanted}")
    if len(set(agents.slots)) != slots or (not agents.in_order and len(set(agents.ids)) != count):
        raise ValueError("each slot and each agent must be named once")
    if len(owners.weights) and int(owners.weights.min()) < 1:
        raise ValueError("weights must be 1 or more")
