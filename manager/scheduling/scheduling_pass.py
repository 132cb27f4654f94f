"""One scheduling pass: from columns to decisions, without touching the outside world.

`run_pass` chains the two levels: `selection` says which session is next, `placement` finds its agents. Its answer stays in arrays;
reasons of sessions that were not placed are worked out when asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from manager.scheduling.columns import (
    UNPLACED,
    Agents,
    Explanation,
    Integers,
    Mask,
    Owners,
    Policy,
    Queue,
    Tier,
    Verdict,
)
from manager.scheduling.free import Free
from manager.scheduling.kinds import Kind, Shapes, find_kinds
from manager.scheduling.lanes import Lanes
from manager.scheduling.placement import Placement, Placer
from manager.scheduling.quotas import QuotaBook
from manager.scheduling.reasons import Explainer, behind
from manager.scheduling.selection import Line, select
from manager.scheduling.shares import total_capacity
from manager.scheduling.strategies import CONCENTRATED, slot_order, validate_policy


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a pass decided."""

    # Rows of the sessions placed, in order of decision.
    sessions: Integers
    # By kernel (row of `Queue.requests`): row of its agent, or UNPLACED.
    kernel_agents: Integers
    # What each owner holds with the decisions: U x S.
    held: Integers
    # By session: a Verdict.
    verdicts: NDArray[np.int8]
    # Id of the agent that a rotation chose last; give it to the next pass.
    rotation: str
    _queue: Queue = field(repr=False)
    _kinds: list[Kind | None] = field(repr=False)
    _explainer: Explainer = field(repr=False)
    _behind: Explanation | None = field(repr=False)
    _book: QuotaBook | None = field(repr=False)

    def explain(self, session: int) -> Explanation | None:
        """Why the session in a row of the queue waits; None when it was placed. Sessions of one kind share one object."""
        verdict = self.verdicts[session]
        if verdict == Verdict.PLACED:
            return None
        if verdict == Verdict.HELD_BACK:
            return self._queue.held_back[session]
        if verdict == Verdict.BEHIND:
            return self._behind
        kind = self._kinds[session]
        if kind is None:
            return None
        why = self._explainer.explain(kind, self._queue.wishes.get(session))
        if verdict == Verdict.OVER_QUOTA and self._book is not None and why.tier is not Tier.CONFIGURATION:
            return self._book.explain(session, kind)
        return why


def run_pass(agents: Agents, owners: Owners, queue: Queue, policy: Policy, rotation: str = "") -> Decisions:
    """Decides which waiting sessions go where now. `rotation` is what the last pass answered under `round-robin`.

    Raises PolicyError on a bad policy and ValueError when columns do not match.
    """
    settings = validate_policy(policy)
    _check(agents, owners, queue)
    columns = slot_order(agents.slots, settings.slot_priority)
    max_kernels = settings.max_kernels_per_agent
    lanes = Lanes(len(columns) + (1 if max_kernels else 0))
    shapes = Shapes(lanes)
    free = Free(agents, columns, lanes, max_kernels, every_move=settings.agent_strategy == CONCENTRATED)
    ids = [agents.ids[row] for row in free.rows.tolist()]
    placer = Placer(free, shapes, settings, len(columns), bisect_right(ids, rotation), replicas=queue.replicas)

    verdicts = np.full(len(queue.owners), Verdict.NO_ROOM, np.int8)
    if queue.held_back:
        verdicts[list(queue.held_back)] = Verdict.HELD_BACK
    rows = np.flatnonzero(verdicts == Verdict.NO_ROOM)
    found, kind_of = find_kinds(queue, rows, columns, lanes, shapes)
    kinds: list[Kind | None] = [None] * len(queue.owners)
    for row, kind in zip(rows.tolist(), kind_of.tolist(), strict=True):
        kinds[row] = found[kind]
    homeless = _without_agents(queue, rows, found, kind_of, free)
    verdicts[rows[homeless]] = Verdict.NO_AGENT

    placed: list[int] = []
    placements: list[Placement] = []
    wishes = queue.wishes

    book = None if queue.quotas is None else QuotaBook(queue.quotas, agents.slots, columns)
    over_quota: set[int] = set()

    def attempt(row: int) -> Kind | None:
        kind = kinds[row]
        if kind is None:
            return None
        if book is not None and not book.admits(row, kind):
            over_quota.add(row)
            return None
        if kind.failed:
            return None
        placement = placer.place_wished(kind, wishes[row]) if row in wishes else placer.place(kind)
        if placement == UNPLACED:
            return None
        placed.append(row)
        placements.append(placement)
        if book is not None:
            book.take(row, kind)
        return kind

    line = Line(
        queue=queue,
        owners=owners,
        rows=rows[~homeless],
        capacity=[total_capacity(agents.capacity)[column] for column in columns],
        columns=columns,
        attempt=attempt,
        over_quota=over_quota,
    )
    head, waiting = select(line, settings)
    sessions = np.array(placed, np.int64)
    verdicts[waiting] = Verdict.BEHIND
    verdicts[list(over_quota)] = Verdict.OVER_QUOTA
    verdicts[sessions] = Verdict.PLACED
    kernel_agents, held = _account(queue, owners, free, sessions, placements)
    position = placer.position
    return Decisions(
        sessions=sessions,
        kernel_agents=kernel_agents,
        held=held,
        verdicts=verdicts,
        rotation=ids[position - 1] if position else rotation,
        _queue=queue,
        _kinds=kinds,
        _explainer=Explainer(agents, free, placer, columns, max_kernels),
        _behind=None if head is None else behind(queue.ids[head]),
        _book=book,
    )


def _without_agents(
    queue: Queue, rows: Integers, found: list[Kind], kind_of: Integers, free: Free
) -> NDArray[np.bool_]:
    """Which of the rows have no agent that could take them, whatever is free."""
    lacking = np.array([_lacks(kind, free, free.schedulable) for kind in found], np.bool_)
    homeless = lacking[kind_of] if len(found) else np.zeros(len(rows), np.bool_)
    for session, wishes in queue.wishes.items():
        if wishes.strict and len(wishes.designated) and session not in queue.held_back:
            place = int(np.searchsorted(rows, session))
            homeless[place] |= _lacks(
                found[int(kind_of[place])], free, np.isin(free.rows, np.array(wishes.designated, np.int64))
            )
    return homeless


def _lacks(kind: Kind, free: Free, among: Mask) -> bool:
    """Whether some kernel of a kind has no agent among these that could take it."""
    shapes = [kind.whole] if kind.single_node else [shape for shape, _ in kind.groups]
    return not all((free.takers(shape.needs) & among).any() for shape in shapes)


def _account(
    queue: Queue, owners: Owners, free: Free, sessions: Integers, placements: list[Placement]
) -> tuple[Integers, Integers]:
    """The agent's row of each kernel, and what owners hold with the placements."""
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
    if len(set(agents.slots)) != slots or len(set(agents.ids)) != count:
        raise ValueError("each slot and each agent must be named once")
    if len(owners.weights) and int(owners.weights.min()) < 1:
        raise ValueError("weights must be 1 or more")
