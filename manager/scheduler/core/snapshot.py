"""Builds the snapshot that one pass of one group reads, from the cache in a few vector steps. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np
import orjson
from numpy.typing import NDArray

from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.scheduling.policy import NOT_IN_SHARES, Tier
from retinue.manager.domain.session.explanation import StoredExplanation, StoredShortfall
from retinue.manager.domain.session.isolation_policy import not_allowed
from retinue.manager.domain.session.quota_subjects import Subject, subjects_of, words
from retinue.manager.domain.session.runtime_features import FAMILIES, FEATURES, OF_ISOLATION, SFTP
from retinue.manager.scheduling.columns import (
    UNLIMITED,
    AgentPreferences,
    Agents,
    Explanation,
    Integers,
    Owners,
    Queue,
    Quotas,
    Running,
)
from retinue.manager.scheduling.fair_share import normalised_usage
from retinue.manager.scheduling.quotas import QUOTA
from retinue.rpc.core.amounts import format_amount

if TYPE_CHECKING:
    from retinue.manager.domain.scheduling.records import GroupRecord, PendingSession, RunningSession
    from retinue.manager.scheduler.core.cache import Cache, Limit

# Project and name.
Endpoint: TypeAlias = tuple[str, str]

# The last second of the year 9999, beyond which no calendar goes.
_LAST_SECOND = 253_402_300_799.0


@dataclass(frozen=True, slots=True)
class PastUsage:
    """Decayed usage in amount times seconds, by owner and slot, and how it counts;
    without `slot_weights` all slots count the same but those of NOT_IN_SHARES.
    """

    usage: Mapping[str, Mapping[str, float]]
    look_back_days: int
    slot_weights: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one pass of one group reads, and where it stands in the cache."""

    group: str
    agents: Agents
    owners: Owners
    queue: Queue
    # By session of the queue: its account and its hostnames, as numbers of the cache.
    accounts: Integers
    hostnames: Integers
    # UUIDs.
    ids: NDArray[np.object_]
    # By agent: its row in the cache; by slot: its column there.
    agent_rows: Integers
    columns: Integers
    # By session: its row in the cache's queue, while that is not packed again.
    rows: Integers
    packed: int
    hostname_sets: Sequence[tuple[str, ...]]


def snapshot_of(
    cache: Cache,
    group: str,
    now: float,
    past: PastUsage | None = None,
    *,
    replicas: Mapping[Endpoint, Mapping[str, int]] = MappingProxyType({}),
) -> Snapshot:
    """Returns the columns of one group at `now` (seconds since 1970). Owners with equal shares are served in the order
    in which their first session arrived; given past usage, those who used least for their weight come first: owners who
    hold nothing now differ by nothing else. `replicas` are the live kernels of endpoints by agent.
    """
    cache.widen()
    table, queue = cache.agents, cache.queue
    rows = queue.rows_of(group)
    kernels, offsets = queue.kernels_of(rows)
    requests = queue.requests[kernels]
    index = table.of_group(group)
    capacity = table.capacity[index.rows]
    used_columns = np.flatnonzero(capacity.any(axis=0) | requests.any(axis=0)).tolist()
    offers, families = _offers(table.offers[index.rows])
    columns = np.array(sorted(used_columns, key=cache.slots.names.__getitem__), np.int64)
    slots = tuple(cache.slots.names[column] for column in columns)
    capacity = capacity[:, columns]
    accounts = queue.account[rows].astype(np.int64)
    waiting, positions = np.unique(accounts, return_index=True)
    in_order = waiting[np.argsort(positions)].tolist()
    normalised: dict[str, float] = {}
    if past is not None:
        normalised = _normalised(past, dict(zip(slots, capacity.sum(axis=0, dtype=np.float64).tolist(), strict=True)))
    owners, owner_of = _owners(cache, group, in_order, columns, normalised if past is not None else None)
    constrained = _constrained(cache, rows)
    endpoints = {
        endpoint: number
        for number, endpoint in enumerate(dict.fromkeys(filter(None, map(endpoint_of, constrained.values()))))
    }
    found = {
        subject: cache.quotas[subject]
        for account in waiting.tolist()
        for subject in subjects_of(cache.accounts.names[account])
        if subject in cache.quotas
    }
    limits = {subject: limit for subject, limit in found.items() if not limit.unreadable}
    broken = [subject for subject, limit in found.items() if limit.unreadable]
    ids = queue.ids[rows]
    return Snapshot(
        group=group,
        agents=Agents(
            slots=slots,
            ids=index.ids,
            capacity=capacity,
            used=table.used[index.rows][:, columns],
            schedulable=table.schedulable[index.rows],
            architectures=index.architectures,  # type: ignore[arg-type]  # reads like a sequence
            kernels=table.kernels[index.rows],
            features=FEATURES,
            offers=offers,
            families=families,
            in_order=True,
        ),
        owners=owners,
        queue=Queue(
            ids=_Texts(ids),
            owners=owner_of[accounts],
            priorities=queue.priority[rows].astype(np.int64),
            orders=queue.sequence[rows],
            single_node=queue.single_node[rows],
            offsets=offsets,
            requests=requests[:, columns],
            needs=queue.needs[kernels].astype(np.int64),
            tries=queue.tries[rows].astype(np.int64),
            held_back=_held_by_broken_quotas(cache, broken, accounts)
            | {
                session: why
                for session, row in constrained.items()
                if (why := held_back(row, now, index.position)) is not None
            }
            | _held_by_isolation(cache.groups[group], queue.needs[kernels], offsets),
            architectures={session: row.architecture for session, row in constrained.items() if row.architecture},
            wishes={
                session: wishes
                for session, row in constrained.items()
                if (wishes := wishes_of(row, index.position, endpoints)) is not None
            },
            replicas=[
                {
                    index.position[agent]: kernels
                    for agent, kernels in replicas.get(endpoint, {}).items()
                    if agent in index.position
                }
                for endpoint in endpoints
            ],
            waited=np.maximum(0, now - queue.created[rows]).astype(np.int64),
            limits={session: row.time_limit_seconds for session, row in constrained.items() if row.time_limit_seconds},
            nominated={
                session: tuple(index.position[agent] for agent in row.nominated or ())
                for session, row in constrained.items()
                # Capacity held on an agent that is gone is void.
                if row.nominated_until > now and all(agent in index.position for agent in row.nominated or ())
            },
            quotas=_quotas(cache, limits, accounts, slots, columns) if limits else None,
        ),
        accounts=accounts,
        hostnames=queue.hostnames[rows],
        ids=ids,
        agent_rows=index.rows,
        columns=columns,
        rows=rows,
        packed=queue.packed,
        hostname_sets=queue.hostname_sets,
    )


def _offers(offers: Integers) -> tuple[Integers, Mapping[int, str]]:
    """Returns the features of agents, and the families of their addresses; none where all have one in common."""
    if any((offers & bit).all() for bit in FAMILIES.values()):
        return offers & ((1 << len(FEATURES)) - 1), {}
    return offers, {bit: f"IPv{version}" for version, bit in FAMILIES.items()}


def build_running(sessions: Sequence[RunningSession], agents: Agents) -> Running:
    """Returns the columns of placed sessions; what they hold of agents that are lost does not come free."""
    agent_row = {agent: position for position, agent in enumerate(agents.ids)}
    column = {slot: position for position, slot in enumerate(agents.slots)}
    held = [[holding for holding in row.holdings if holding.agent in agent_row] for row in sessions]
    holdings = [holding for of_session in held for holding in of_session]
    amounts = np.zeros((len(holdings), len(agents.slots)), dtype=np.int64)
    for position, holding in enumerate(holdings):
        for slot, amount in holding.slots.items():
            if slot in column:
                amounts[position, column[slot]] = amount
    offsets = np.zeros(len(sessions) + 1, dtype=np.int64)
    np.cumsum([len(of_session) for of_session in held], out=offsets[1:])
    return Running(
        ids=[str(row.id) for row in sessions],
        priorities=np.array([row.priority for row in sessions], dtype=np.int64),
        preemptible=np.array([row.preemptible for row in sessions], dtype=np.bool_),
        placed=np.array([round(row.placed * 1e6) for row in sessions], dtype=np.int64),
        ends=np.array([np.inf if row.ends is None else row.ends for row in sessions], dtype=np.float64),
        offsets=offsets,
        agents=np.array([agent_row[holding.agent] for holding in holdings], dtype=np.int64),
        amounts=amounts,
        finishing=np.array([row.finishing for row in sessions], dtype=np.bool_),
    )


def endpoint_of(row: PendingSession) -> Endpoint | None:
    """Project and name of the endpoint whose replicas decide where a waiting session goes."""
    return (row.project, row.endpoint) if row.replica_placement else None


def endpoints_of(cache: Cache, group: str) -> set[Endpoint]:
    """Returns the endpoints whose replicas decide where sessions go that wait in a group."""
    return {
        endpoint
        for row in cache.queue.constrained.values()
        if row.resource_group == group and (endpoint := endpoint_of(row)) is not None
    }


def held_back(row: PendingSession, now: float, position: Mapping[str, int]) -> Explanation | None:
    """Returns why a waiting session is not to be tried at `now`; `position` is that of agents by id. Only rows that
    `is_constrained` picks are asked about.
    """
    if (policy := _held_by_policy(row, now)) is not None:
        return policy
    if row.clearing:
        return Explanation(
            Tier.SYSTEM, SessionReason.CLEARING, "what an earlier start left on its agents is being cleared away"
        )
    if row.next_try > now:
        again = row.retries and not row.failed_starts
        code, what = (SessionReason.RETRY_BACKOFF, "try") if again else (SessionReason.START_BACKOFF, "start")
        why = f"its last {what} failed ({row.last_failure}); it waits before the next try"
        return Explanation(Tier.SYSTEM, code, why)
    if row.agents_strict and not any(agent in position for agent in row.agents or ()):
        named = ", ".join(row.agents or ())
        return Explanation(
            Tier.SYSTEM, SessionReason.NO_AGENT_AVAILABLE, f"none of the agents that it must run on is here: {named}"
        )
    return None


def _held_by_broken_quotas(cache: Cache, broken: Iterable[Subject], accounts: Integers) -> dict[int, Explanation]:
    """Returns, by session, that a quota of its account cannot be read."""
    why = {
        account: Explanation(
            Tier.POLICY, QUOTA, f"the quota of {words(subject)} cannot be read: an administrator has to set it again"
        )
        for subject in broken
        for account in cache.accounts.of_subject[subject]
    }
    if not why:
        return {}
    return {session: why[account] for session, account in enumerate(accounts.tolist()) if account in why}


def _held_by_isolation(group: GroupRecord, needs: Integers, offsets: Integers) -> dict[int, Explanation]:
    """Returns, by session, that its group does not allow what its kernels are; SFTP servers are always allowed."""
    if not group.isolations or not len(needs):
        return {}
    refused = sum(bits for isolation, bits in OF_ISOLATION.items() if isolation not in group.isolations)
    found = np.bitwise_or.reduceat(np.where(needs & SFTP, 0, needs & refused), offsets[:-1])
    why = {
        bits: Explanation(
            Tier.POLICY,
            SessionReason.ISOLATION_NOT_ALLOWED,
            not_allowed([isolation for isolation, known in OF_ISOLATION.items() if bits & known], group.name),
        )
        for bits in np.unique(found).tolist()
        if bits
    }
    return {session: why[bits] for session, bits in enumerate(found.tolist()) if bits} if why else {}


def _held_by_policy(row: PendingSession, now: float) -> Explanation | None:
    if row.hold:
        return Explanation(Tier.POLICY, SessionReason.HELD, "it is held; it waits until it is released")
    if row.open_dependencies:
        names, number = list(row.waits_for), row.open_dependencies
        more = f" and {number - len(names)} more" if number > len(names) else ""
        return Explanation(Tier.POLICY, SessionReason.DEPENDENCY, f"it waits for {', '.join(names)}{more}")
    if (row.earliest_start_time or 0.0) > now:
        return _starts_later(row.earliest_start_time or 0.0)
    return None


@lru_cache(maxsize=65_536)
def _starts_later(start: float) -> Explanation:
    """Returns the reason of sessions that start at a time, once for all passes."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=min(start, _LAST_SECOND))
    return Explanation(
        Tier.POLICY, SessionReason.START_TIME, f"it starts at {moment:%Y-%m-%d %H:%M:%S} UTC at the earliest"
    )


def wishes_of(
    row: PendingSession, position: Mapping[str, int], endpoints: Mapping[Endpoint, int]
) -> AgentPreferences | None:
    """Returns which agents a waiting session likes or does not like; endpoints are numbered. Asked as `held_back`."""
    if not (row.failed_agents or row.agents or row.replica_placement):
        return None
    endpoint = endpoint_of(row)
    return AgentPreferences(
        designated=tuple(position[agent] for agent in row.agents or () if agent in position),
        strict=bool(row.agents_strict),
        avoided=tuple(position[agent] for agent in row.failed_agents or () if agent in position),
        endpoint=None if endpoint is None else endpoints[endpoint],
        pack=row.replica_placement == "PACK",
    )


def stored_explanation(why: Explanation, hostnames: Sequence[str]) -> StoredExplanation:
    """Returns an explanation as it is stored, with amounts as people write them."""
    return StoredExplanation(
        why.tier,
        tuple(
            StoredShortfall(
                hostname="" if shortfall.kernel is None else hostnames[shortfall.kernel],
                agent=shortfall.agent,
                slot=lack.slot,
                requested=format_amount(lack.slot, lack.requested),
                free=format_amount(lack.slot, lack.free),
                short=format_amount(lack.slot, lack.short),
            )
            for shortfall in why.shortfalls
            for lack in shortfall.lacks[:1]
        ),
    )


def explanation_text(why: Explanation, hostnames: Sequence[str]) -> str:
    """Returns `stored_explanation` as JSON."""
    return orjson.dumps(stored_explanation(why, hostnames)).decode()


class _Texts(Sequence[str]):
    """Ids as text, made when one is asked for."""

    def __init__(self, ids: NDArray[np.object_]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        return _Texts(self._ids[row]) if isinstance(row, slice) else str(self._ids[row])


class _ByAccount(Sequence[tuple[int, ...]]):
    """For each session what its account has."""

    def __init__(self, accounts: Integers, values: Mapping[int, tuple[int, ...]]) -> None:
        self._accounts = accounts
        self._values = values

    def __len__(self) -> int:
        return len(self._accounts)

    @overload
    def __getitem__(self, row: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[tuple[int, ...]]: ...
    def __getitem__(self, row: int | slice) -> tuple[int, ...] | Sequence[tuple[int, ...]]:
        if isinstance(row, slice):
            return _ByAccount(self._accounts[row], self._values)
        return self._values[int(self._accounts[row])]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (self._values[account] for account in self._accounts.tolist())


def _owners(
    cache: Cache,
    group: str,
    waiting: Sequence[int],
    columns: Integers,
    past_usage: Mapping[str, float] | None,
) -> tuple[Owners, Integers]:
    """Returns the owners, and by account its owner's row: first those who wait, by arrival,
    then those who only hold; this order decides ties.
    """
    table = cache.accounts
    weights: Mapping[str, int] = cache.groups[group].owner_weights
    members = table.of_group.get(group, [])
    holding: list[bool] = np.any(table.held[members], axis=1).tolist()
    holders = {table.names[account][1] for account, holds in zip(members, holding, strict=True) if holds}
    names = list(dict.fromkeys([*(table.names[account][1] for account in waiting), *sorted(holders)]))
    if past_usage is not None:
        names.sort(key=lambda name: past_usage.get(name, 0.0) / weights.get(name, 1))
    row = {name: position for position, name in enumerate(names)}
    owner_of = np.full(len(table.names), -1, np.int64)
    owner_of[members] = [row.get(table.names[account][1], -1) for account in members]
    held = np.zeros((len(names), len(columns)), np.int64)
    known = [account for account in members if owner_of[account] >= 0]
    np.add.at(held, owner_of[known], table.held[known][:, columns])
    return (
        Owners(
            names=names,
            weights=np.array([weights.get(name, 1) for name in names], np.int64),
            held=held,
            past_usage=None
            if past_usage is None
            else np.array([past_usage.get(name, 0.0) for name in names], np.float64),
        ),
        owner_of,
    )


def _constrained(cache: Cache, rows: Integers) -> dict[int, PendingSession]:
    """Returns the constrained sessions, by row of the queue."""
    constrained = cache.queue.constrained
    if not constrained:
        return {}
    where = np.full(cache.queue.count, -1, np.int64)
    where[rows] = np.arange(len(rows))
    return {int(where[number]): row for number, row in constrained.items() if where[number] >= 0}


def _normalised(past: PastUsage, capacity: Mapping[str, float]) -> dict[str, float]:
    """Returns by owner the usage as part of what the group gives in the look-back time."""
    slot_weights = past.slot_weights
    if slot_weights is None:
        slot_weights = {slot: 1.0 for slot in capacity if slot not in NOT_IN_SHARES}
    return {
        owner: normalised_usage(usage, capacity, past.look_back_days, slot_weights)
        for owner, usage in past.usage.items()
    }


def _quotas(
    cache: Cache, limits: Mapping[Subject, Limit], accounts: Integers, slots: Sequence[str], columns: Integers
) -> Quotas:
    subjects = sorted(limits)
    row_of = {subject: row for row, subject in enumerate(subjects)}
    table = cache.accounts
    holders = [table.of_subject.get(subject, []) for subject in subjects]
    return Quotas(
        names=[words(subject) for subject in subjects],
        slots=slots,
        limits=np.array(
            [[limits[subject].slots.get(slot, UNLIMITED) for slot in slots] for subject in subjects], np.int64
        ).reshape(len(subjects), len(slots)),
        held=np.array([table.held[rows][:, columns].sum(axis=0) for rows in holders], np.int64).reshape(
            len(subjects), len(slots)
        ),
        session_limits=np.array(
            [_limit(limits[subject].max_sessions) for subject in subjects],
            np.int64,
        ),
        sessions=np.array([table.sessions[rows].sum() for rows in holders], np.int64),
        of_sessions=_ByAccount(
            accounts,
            {
                account: tuple(
                    row_of[subject] for subject in subjects_of(cache.accounts.names[account]) if subject in row_of
                )
                for account in np.unique(accounts).tolist()
            },
        ),
    )


def _limit(most: int | None) -> int:
    return UNLIMITED if most is None else most
