"""The scheduler cache, the leader's in-memory copy of rows: agents, what is held of them and by whom, quotas,
and all that waits. Pure.

It is columns of numbers, so that a pass takes what it needs in a few vector steps, whatever waits. It equals the rows
at every moment in which no placement is on its way to the database; one that is on its way counts as done, so that the
next pass can be planned meanwhile. `cache_sync.CacheSync` fills it and takes in what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from retinue.manager.domain.scheduling.records import AgentRecord, GroupRecord, PendingSession, QuotaRecord
from retinue.manager.domain.session.quota_subjects import Account, Subject, subjects_of
from retinue.manager.scheduler.core.agent_table import AgentTable
from retinue.manager.scheduler.core.growable import Slots, empty, empty_amounts, grown, widened
from retinue.manager.scheduler.core.pending_table import PendingTable
from retinue.manager.scheduling.columns import Integers
from retinue.rpc.core.amounts import MAX_AMOUNT


class AccountTable:
    """The amounts that live claims hold, and the number of placed sessions, by account."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.names: list[Account] = []
        self.row_of: dict[Account, int] = {}
        self.held = empty_amounts()
        self.sessions: Integers = empty(np.int64)
        # Rows by group, and by the subject of a quota.
        self.of_group: dict[str, list[int]] = {}
        self.of_subject: dict[Subject, list[int]] = {}

    def row(self, account: Account) -> int:
        """Returns the row of an account, a new one when there is none."""
        number = self.row_of.get(account)
        if number is None:
            number = self.row_of[account] = len(self.names)
            self.names.append(account)
            self.held, self.sessions = grown(self.held, number + 1), grown(self.sessions, number + 1)
            self.of_group.setdefault(account.resource_group, []).append(number)
            for subject in subjects_of(account):
                self.of_subject.setdefault(subject, []).append(number)
        return number

    def widen(self) -> None:
        """Makes room for new slots."""
        self.held = widened(self.held, len(self._slots.names))


class CacheError(Exception):
    """A change that does not fit what is known: the rows have to be read again."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota as far as the scheduler counts: amounts by slot, and placed sessions."""

    slots: Mapping[str, int]
    max_sessions: int | None
    # Why it cannot be read; whom it is for gets no place meanwhile, as the intended amount is not known.
    unreadable: str = ""

    @classmethod
    def of(cls, row: QuotaRecord) -> Limit:
        """Returns a quota as stored. Never raises."""
        slots, number = row.slots, row.max_sessions
        if not isinstance(slots, dict):
            return cls({}, None, "its amounts are no object")
        for slot, amount in slots.items():
            if type(amount) is not int or not 0 <= amount <= MAX_AMOUNT:
                return cls({}, None, f"its amount of {slot[:64]!r} is none")
        if number is not None and number < 0:
            return cls({}, None, "its number of sessions is negative")
        return cls(slots, number)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The amounts that placed sessions take: by kernel its agent's row and amounts,
    by session its account and first kernel (one more at the end).
    """

    agents: Integers
    requests: Integers
    accounts: Integers
    offsets: Integers

    def part(self, sessions: Integers) -> Holdings:
        """Returns the holdings of some of the sessions."""
        sizes = self.offsets[sessions + 1] - self.offsets[sessions]
        offsets = np.zeros(len(sessions) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        kernels = np.repeat(self.offsets[sessions] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Holdings(self.agents[kernels], self.requests[kernels], self.accounts[sessions], offsets)


@dataclass(slots=True)
class Cache:
    """All of it."""

    slots: Slots
    agents: AgentTable
    accounts: AccountTable
    queue: PendingTable
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    quotas: dict[Subject, Limit] = field(default_factory=dict)
    subnets: set[str] = field(default_factory=set)
    vnis: set[int] = field(default_factory=set)
    # Rows that this version cannot read, by what they are of: they are left out, and cost nothing else.
    unreadable: dict[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, offered: Callable[[Iterable[str]], int], needed: Callable[[str, bool, bool], int]) -> Cache:
        """Nothing yet."""
        slots = Slots()
        return cls(slots, AgentTable(slots, offered), AccountTable(slots), PendingTable(slots, needed))

    def put_waiting(self, rows: Iterable[PendingSession]) -> set[str]:
        """Puts sessions that wait, as read; returns their groups."""
        groups = set()
        for row in rows:
            groups.add(row.resource_group)
            self._put_session(row)
        return groups

    def _put_session(self, row: PendingSession) -> None:
        name = f"session {row.id}"
        try:
            if not row.readable:
                raise ValueError("another version wrote its request")
            self.queue.put(row, self.accounts.row(Account(row.resource_group, row.owner, row.project, row.system)))
        except Exception as error:  # noqa: BLE001  # said by the caller; the others are placed
            self.queue.remove(row.id)
            self.unreadable[name] = repr(error)
        else:
            self.unreadable.pop(name, None)

    def put_agent(self, row: AgentRecord) -> set[str]:
        """Puts an agent as read; returns the groups affected."""
        name = f"agent {row.id}"
        try:
            groups = self.agents.put(row)
        except Exception as error:  # noqa: BLE001  # said by the caller; the others take what there is
            self.unreadable[name] = repr(error)
            return self.agents.remove(row.id)
        self.unreadable.pop(name, None)
        return groups

    def put_quota(self, subject: Subject, limit: Limit | None) -> set[str]:
        """Puts a quota as read, or removes it for None; returns the groups that may be affected."""
        before = self.quotas.pop(subject, None)
        name = "quota {} {}".format(*subject)
        self.unreadable.pop(name, None)
        if limit is not None and limit.unreadable:
            self.unreadable[name] = limit.unreadable
        if limit is not None and (limit.slots or limit.max_sessions is not None or limit.unreadable):
            self.quotas[subject] = limit
        if before == self.quotas.get(subject):
            return set()
        return {self.accounts.names[row][0] for row in self.accounts.of_subject.get(subject, ())}

    def add_claim(self, agent: str, account: Account, slot: str, amount: int) -> None:
        """Adds an amount, which may be negative, to what is held."""
        row = self.agents.row_of.get(agent)
        if row is None:
            raise CacheError(f"claim on an unknown agent {agent}")
        column, holder = self.slots.column(slot), self.accounts.row(account)
        self.widen()
        self.agents.used[row, column] += amount
        self.accounts.held[holder, column] += amount

    def add_placed(self, account: Account, number: int) -> None:
        """Adds a number, which may be negative, to the placed sessions of an account."""
        row = self.accounts.row(account)
        self.accounts.sessions[row] += number

    def add_kernels(self, agent: str, number: int) -> str:
        """Adds a number, which may be negative, to the live kernels of an agent; returns its group."""
        row = self.agents.row_of.get(agent)
        if row is None:
            raise CacheError(f"attempt on an unknown agent {agent}")
        self.agents.kernels[row] += number
        return self.agents.groups[row]

    def widen(self) -> None:
        """Makes room for slots that are new."""
        self.agents.widen()
        self.accounts.widen()
        self.queue.widen()

    def count(self, holdings: Holdings, sign: int) -> None:
        """Counts what sessions take (1), or not any more (-1)."""
        width = holdings.requests.shape[1]
        np.add.at(self.agents.used[:, :width], holdings.agents, sign * holdings.requests)
        np.add.at(self.agents.kernels, holdings.agents, sign)
        sizes = np.diff(holdings.offsets)
        np.add.at(self.accounts.held[:, :width], np.repeat(holdings.accounts, sizes), sign * holdings.requests)
        np.add.at(self.accounts.sessions, holdings.accounts, sign)

    def over_quota(self, holdings: Holdings, quotas: Mapping[Subject, Limit], *, counted: bool) -> Collection[int]:
        """Returns those of the sessions, one after the other, for which the quotas have no room;
        `counted` says that they are counted already.
        """
        if not quotas:
            return ()
        names = self.accounts.names
        affected = {
            account: [subject for subject in subjects_of(names[account]) if subject in quotas]
            for account in set(holdings.accounts.tolist())
        }
        subjects = {subject for found in affected.values() for subject in found}
        if not subjects:
            return ()
        sizes = np.diff(holdings.offsets)
        totals = np.zeros((len(sizes), holdings.requests.shape[1]), np.int64)
        np.add.at(totals, np.repeat(np.arange(len(sizes)), sizes), holdings.requests)
        left: dict[Subject, tuple[dict[int, int], list[int] | None]] = {}
        for subject in subjects:
            limit, accounts = quotas[subject], self.accounts.of_subject[subject]
            mine = np.isin(holdings.accounts, accounts) if counted else np.zeros(len(sizes), np.bool_)
            amounts = {}
            for slot, most in limit.slots.items():
                column = self.slots.column(slot)
                held = int(self.accounts.held[accounts, column].sum()) if column < self.accounts.held.shape[1] else 0
                taken = int(totals[mine, column].sum()) if column < totals.shape[1] else 0
                amounts[column] = most - held + taken
            number = [0] if limit.unreadable else None
            if limit.max_sessions is not None:
                number = [limit.max_sessions - int(self.accounts.sessions[accounts].sum()) + int(mine.sum())]
            left[subject] = (amounts, number)
        self.widen()
        over = []
        for session, (account, total) in enumerate(zip(holdings.accounts.tolist(), totals.tolist(), strict=True)):
            mine_left = [left[subject] for subject in affected[account]]
            if any(
                (number is not None and number[0] < 1)
                or any(column < len(total) and 0 < total[column] > rest for column, rest in amounts.items())
                for amounts, number in mine_left
            ):
                over.append(session)
                continue
            for amounts, number in mine_left:
                for column in amounts:
                    amounts[column] -= total[column] if column < len(total) else 0
                if number is not None:
                    number[0] -= 1
        return over
