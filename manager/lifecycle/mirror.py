"""What the leader's scheduler keeps in memory of the rows: agents, what is held of them and by whom, quotas, and all that waits. Pure.

It is columns of numbers, so that a pass takes what it needs in a few vector steps, whatever waits. It equals the rows at every moment in
which no placement is on its way to the database; one that is on its way counts as done, so that the next pass can be planned meanwhile.
`keeper.Keeper` fills it and takes in what changes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manager.lifecycle.growing import Slots, empty, empty_amounts, grown, widened
from manager.scheduling.columns import Integers, Mask

Row = Mapping[str, Any]
# Group, owner and project.
Account = tuple[str, str, str]
Subject = tuple[str, str]

# Queues are packed when half of their rows are gone, and they are not small.
_PACKED_ABOVE = 1024


class MirrorError(Exception):
    """A change that does not fit what is known: the rows have to be read anew."""


@dataclass(frozen=True, slots=True)
class AgentIndex:
    """The agents of a group that count (heard of and not lost), in order of their ids, as rows of `AgentTable`."""

    rows: Integers
    ids: list[str]
    architectures: NDArray[np.object_]
    position: Mapping[str, int]


class AgentTable:
    """All agents, whatever their state: what is held of them is known before they count."""

    def __init__(self, slots: Slots, offered: Callable[[Iterable[str]], int]) -> None:
        """`offered` says what agents with certain backends offer, as bits."""
        self._slots = slots
        self._offered = offered
        self.ids: list[str] = []
        self.row_of: dict[str, int] = {}
        self.groups: list[str] = []
        self.architectures: list[str] = []
        self.underlays: list[tuple[str, int]] = []
        self.capacity, self.used = empty_amounts(), empty_amounts()
        self.kernels: Integers = empty(np.int64)
        self.offers: Integers = empty(np.int64)
        self.counts: Mask = empty(np.bool_)
        self.schedulable: Mask = empty(np.bool_)
        self._indices: dict[str, AgentIndex] = {}

    def put(self, row: Row) -> set[str]:
        """An agent as read. Returns the groups that this concerns."""
        number = self.row_of.get(row["id"])
        groups = {row["resource_group"]}
        if number is None:
            number = self.row_of[row["id"]] = len(self.ids)
            self.ids.append(row["id"])
            self.groups.append("")
            self.architectures.append("")
            self.underlays.append(("", 0))
            self.capacity, self.used = grown(self.capacity, number + 1), grown(self.used, number + 1)
            self.kernels, self.offers = grown(self.kernels, number + 1), grown(self.offers, number + 1)
            self.counts, self.schedulable = grown(self.counts, number + 1), grown(self.schedulable, number + 1)
        else:
            groups.add(self.groups[number])
        self.groups[number] = row["resource_group"]
        self.architectures[number] = row["architecture"]
        self.underlays[number] = (row["underlay_address"], row["underlay_mtu"])
        columns = [self._slots.column(slot) for slot in row["capacity"]]
        self.widen()
        self.capacity[number] = 0
        self.capacity[number, columns] = list(row["capacity"].values())
        self.offers[number] = self._offered(row["backends"])
        self.counts[number] = row["state"] in ("ALIVE", "SUSPECT") and not row["revoked"]
        self.schedulable[number] = row["state"] == "ALIVE" and not row["drained"] and not row["revoked"]
        for group in groups:
            self._indices.pop(group, None)
        return groups

    def forget(self, agent_id: str) -> set[str]:
        """An agent whose row is gone does not count any more."""
        number = self.row_of.get(agent_id)
        if number is None:
            return set()
        self.counts[number] = self.schedulable[number] = False
        self._indices.pop(self.groups[number], None)
        return {self.groups[number]}

    def widen(self) -> None:
        """Makes room for new slots."""
        self.capacity = widened(self.capacity, len(self._slots.names))
        self.used = widened(self.used, len(self._slots.names))

    def of_group(self, group: str) -> AgentIndex:
        """The agents of a group that count."""
        index = self._indices.get(group)
        if index is None:
            members = [
                number
                for number in np.flatnonzero(self.counts[: len(self.ids)]).tolist()
                if self.groups[number] == group
            ]
            members.sort(key=self.ids.__getitem__)
            ids = [self.ids[number] for number in members]
            index = self._indices[group] = AgentIndex(
                np.array(members, np.int64),
                ids,
                np.array([self.architectures[number] for number in members], dtype=object),
                {agent_id: position for position, agent_id in enumerate(ids)},
            )
        return index


class AccountTable:
    """What live claims hold, and how many placed sessions there are, by group, owner and project."""

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
        """The row of an account, a new one when there is none."""
        number = self.row_of.get(account)
        if number is None:
            number = self.row_of[account] = len(self.names)
            self.names.append(account)
            self.held, self.sessions = grown(self.held, number + 1), grown(self.sessions, number + 1)
            self.of_group.setdefault(account[0], []).append(number)
            for subject in subjects_of(account):
                self.of_subject.setdefault(subject, []).append(number)
        return number

    def widen(self) -> None:
        """Makes room for new slots."""
        self.held = widened(self.held, len(self._slots.names))


def subjects_of(account: Account) -> tuple[Subject, Subject, Subject]:
    """Whose quotas hold for the sessions of an account."""
    group, owner, project = account
    return ("USER", owner), ("PROJECT", project), ("RESOURCE_GROUP", group)


_WORDS = {"USER": "user", "PROJECT": "project", "RESOURCE_GROUP": "resource group"}


def words(subject: Subject) -> str:
    """Whose a quota is, for people: `user ann`."""
    return f"{_WORDS[subject[0]]} {subject[1]}"


@dataclass(frozen=True, slots=True)
class Note:
    """Why a session waits, as it is written into its row. `explanation` is JSON."""

    code: str
    message: str
    explanation: str


class _Shape(NamedTuple):
    first_kernel: int
    size: int
    hostnames: int


class QueueTable:
    """The sessions that wait, of all groups: rows in any order, with holes."""

    def __init__(self, slots: Slots, needed: Callable[[bool], int]) -> None:
        """`needed` says what a kernel needs of an agent, as bits, by whether it has an image."""
        self._slots = slots
        self._needed = needed
        self.count = 0
        self.row_of: dict[uuid.UUID, int] = {}
        self.ids: NDArray[np.object_] = empty(object)
        self.alive: Mask = empty(np.bool_)
        self.single_node: Mask = empty(np.bool_)
        self.clearing: Mask = empty(np.bool_)
        self.group: Integers = empty(np.int32)
        self.account: Integers = empty(np.int32)
        self.sequence: Integers = empty(np.int64)
        self.priority: Integers = empty(np.int32)
        self.created: NDArray[np.float64] = empty(np.float64)
        # When something about it changes by itself, in order.
        self.next_try: NDArray[np.float64] = empty(np.float64)
        self.promise_until: NDArray[np.float64] = empty(np.float64)
        # Tries as counted and as written; why it waits as found and as written, as numbers of notes.
        self.tries: Integers = empty(np.int32)
        self.written_tries: Integers = empty(np.int32)
        self.note: Integers = empty(np.int32)
        self.written_note: Integers = empty(np.int32)
        self.hostnames: Integers = empty(np.int32)
        self.first_kernel: Integers = empty(np.int64)
        self.size: Integers = empty(np.int32)
        self.kernel_count = 0
        self._shapes: dict[str, _Shape] = {}
        # How often rows were renumbered.
        self.packed = 0
        self.requests = empty_amounts()
        self.needs: Integers = empty(np.int16)
        # What few sessions have, by row: the row as read.
        self.particulars: dict[int, Row] = {}
        self.groups: list[str] = []
        self._group_of: dict[str, int] = {}
        self.hostname_sets: list[tuple[str, ...]] = []
        self._hostname_of: dict[tuple[str, ...], int] = {}
        self.notes: list[Note | None] = []
        self._note_of: dict[tuple[str, str, int], int] = {}

    _COLUMNS = (
        "ids", "alive", "single_node", "clearing", "group", "account", "sequence", "priority", "created", "next_try", "promise_until", "tries",
        "written_tries", "note",
        "written_note", "hostnames", "first_kernel", "size",
    )  # fmt: skip

    def put(self, row: Row, account: int) -> None:
        """A session as read, instead of what was known of it."""
        self.remove(row["id"])
        number, shape = self.count, self._shape(row["kernels"] or "[]")
        self.count += 1
        if number >= len(self.alive):
            for name in self._COLUMNS:
                setattr(self, name, grown(getattr(self, name), self.count))
        self.row_of[row["id"]] = number
        self.ids[number] = row["id"]
        note = self.note_number(row["reason"], row["message"], shape.hostnames)
        self.alive[number] = True
        self.single_node[number] = row["cluster_mode"] == "SINGLE_NODE"
        self.clearing[number] = row["clearing"]
        self.group[number] = self.group_number(row["resource_group"])
        self.account[number] = account
        self.sequence[number] = row["sequence"]
        self.priority[number] = row["priority"]
        self.next_try[number] = max(row["next_try"], row["starts_at"])
        self.created[number], self.promise_until[number] = row["created"], row["promise_until"]
        self.tries[number] = self.written_tries[number] = row["tries"]
        self.note[number] = self.written_note[number] = note
        self.hostnames[number] = shape.hostnames
        self.first_kernel[number], self.size[number] = shape.first_kernel, shape.size
        if is_particular(row):
            self.particulars[number] = row

    def _shape(self, text: str) -> _Shape:
        """Kernels as read, in rows of `requests` that all sessions with the same kernels share."""
        shape = self._shapes.get(text)
        if shape is None:
            kernels, first = json.loads(text), self.kernel_count
            self.kernel_count += len(kernels)
            self.requests, self.needs = grown(self.requests, self.kernel_count), grown(self.needs, self.kernel_count)
            for position, kernel in enumerate(kernels, first):
                self.needs[position] = self._needed(kernel["image"])
                for slot, amount in kernel["slots"].items():
                    column = self._slots.column(slot)
                    if column >= self.requests.shape[1]:
                        self.requests = widened(self.requests, column + 1)
                    self.requests[position, column] = amount
            hostnames = self.hostname_set(tuple(kernel["hostname"] for kernel in kernels))
            shape = self._shapes[text] = _Shape(first, len(kernels), hostnames)
        return shape

    def remove(self, session_id: uuid.UUID) -> str | None:
        """Forgets a session; returns its group when it was known."""
        number = self.row_of.pop(session_id, None)
        if number is None:
            return None
        self.alive[number] = False
        self.ids[number] = None
        self.particulars.pop(number, None)
        group: str = self.groups[int(self.group[number])]
        if self.count > _PACKED_ABOVE and len(self.row_of) < self.count // 2:
            self._pack()
        return group

    def widen(self) -> None:
        """Makes room for new slots."""
        self.requests = widened(self.requests, len(self._slots.names))

    def group_number(self, group: str) -> int:
        """The number of a group."""
        if group not in self._group_of:
            self._group_of[group] = len(self.groups)
            self.groups.append(group)
        return self._group_of[group]

    def hostname_set(self, hostnames: tuple[str, ...]) -> int:
        """The number of hostnames by rank: most sessions have the same few."""
        if hostnames not in self._hostname_of:
            self._hostname_of[hostnames] = len(self.hostname_sets)
            self.hostname_sets.append(hostnames)
        return self._hostname_of[hostnames]

    def note_number(
        self, code: str, message: str, hostnames: int, explanation: Callable[[], str] = lambda: "{}"
    ) -> int:
        """The number of a note: what is said by it follows from its words and from who the kernels are."""
        key = (code, message, hostnames)
        if key not in self._note_of:
            self._note_of[key] = len(self.notes)
            self.notes.append(Note(code, message, explanation()))
        return self._note_of[key]

    def rows_of(self, group: str) -> Integers:
        """The rows of a group's sessions in order of arrival."""
        number = self._group_of.get(group)
        if number is None:
            return np.zeros(0, np.int64)
        rows = np.flatnonzero(self.alive[: self.count] & (self.group[: self.count] == number))
        return rows[np.argsort(self.sequence[rows], kind="stable")]

    def kernels_of(self, rows: Integers) -> tuple[Integers, Integers]:
        """The rows of `requests` of all kernels of the sessions in `rows`, one session after the other, and where each session's begin."""
        sizes = self.size[rows].astype(np.int64)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        kernels = np.repeat(self.first_kernel[rows] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return kernels, offsets

    def forget_notes(self) -> None:
        """Forgets notes that no session has any more, once they are many."""
        if len(self.notes) <= 2 * len(self.row_of) + _PACKED_ABOVE:
            return
        rows = np.flatnonzero(self.alive[: self.count])
        kept = np.unique(np.r_[self.note[rows], self.written_note[rows]])
        renumbered = np.zeros(len(self.notes), np.int32)
        renumbered[kept] = np.arange(len(kept))
        key_of = {number: key for key, number in self._note_of.items()}
        self.note[rows], self.written_note[rows] = renumbered[self.note[rows]], renumbered[self.written_note[rows]]
        self._note_of = {key_of[number]: position for position, number in enumerate(kept.tolist())}
        self.notes = [self.notes[number] for number in kept.tolist()]

    def _pack(self) -> None:
        self.packed += 1
        rows = np.flatnonzero(self.alive[: self.count])
        used = set(self.first_kernel[rows].tolist())
        shapes = {text: shape for text, shape in self._shapes.items() if shape.first_kernel in used}
        kernels = [kernel for shape in shapes.values() for kernel in range(shape[0], shape[0] + shape.size)]
        first_of = np.zeros(self.kernel_count + 1, np.int64)
        self._shapes, first = {}, 0
        for text, shape in shapes.items():
            first_of[shape.first_kernel] = first
            self._shapes[text] = shape._replace(first_kernel=first)
            first += shape.size
        for name in self._COLUMNS:
            setattr(self, name, getattr(self, name)[rows].copy())
        self.first_kernel = first_of[self.first_kernel]
        self.requests, self.needs = self.requests[kernels], self.needs[kernels]
        self.count, self.kernel_count = len(rows), len(kernels)
        moved = {number: position for position, number in enumerate(rows.tolist())}
        self.particulars = {moved[number]: row for number, row in self.particulars.items()}
        self.row_of = {session_id: position for position, session_id in enumerate(self.ids.tolist())}


def is_particular(row: Row) -> bool:
    """Whether a waiting session has something that few have, so that its row is kept: see `snapshot.held_back` and `snapshot.wishes_of`."""
    return bool(
        row["failed_agents"]
        or row["clearing"]
        or row["next_try"]
        or row["starts_at"]
        or row["open_dependencies"]
        or row["agents"]
        or row["replica_placement"]
        or row["architecture"]
        or row["time_limit"]
        or row["promise"]
    )


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota as far as the scheduler counts: amounts by slot, and placed sessions."""

    slots: Mapping[str, int]
    max_sessions: int | None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What placed sessions take: by kernel its agent's row and amounts, by session its account and first kernel (one more at the end)."""

    agents: Integers
    requests: Integers
    accounts: Integers
    offsets: Integers

    def part(self, sessions: Integers) -> Holdings:
        """The same of some of the sessions."""
        sizes = self.offsets[sessions + 1] - self.offsets[sessions]
        offsets = np.zeros(len(sessions) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        kernels = np.repeat(self.offsets[sessions] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Holdings(self.agents[kernels], self.requests[kernels], self.accounts[sessions], offsets)


@dataclass(slots=True)
class Mirror:
    """All of it."""

    slots: Slots
    agents: AgentTable
    accounts: AccountTable
    queue: QueueTable
    groups: dict[str, Row] = field(default_factory=dict)
    quotas: dict[Subject, Limit] = field(default_factory=dict)
    subnets: set[str] = field(default_factory=set)
    vnis: set[int] = field(default_factory=set)

    @classmethod
    def empty(cls, offered: Callable[[Iterable[str]], int], needed: Callable[[bool], int]) -> Mirror:
        """Nothing yet."""
        slots = Slots()
        return cls(slots, AgentTable(slots, offered), AccountTable(slots), QueueTable(slots, needed))

    def put_waiting(self, rows: Iterable[Row]) -> set[str]:
        """Sessions that wait, as read; returns their groups."""
        groups = set()
        for row in rows:
            groups.add(row["resource_group"])
            self.queue.put(row, self.accounts.row((row["resource_group"], row["owner"], row["project"])))
        return groups

    def put_quota(self, subject: Subject, limit: Limit | None) -> set[str]:
        """A quota as read, or that there is none; returns the groups that it may concern."""
        before = self.quotas.pop(subject, None)
        if limit is not None and (limit.slots or limit.max_sessions is not None):
            self.quotas[subject] = limit
        if before == self.quotas.get(subject):
            return set()
        return {self.accounts.names[row][0] for row in self.accounts.of_subject.get(subject, ())}

    def add_claim(self, agent: str, account: Account, slot: str, amount: int) -> None:
        """What is held has grown by an amount, or shrunk."""
        row = self.agents.row_of.get(agent)
        if row is None:
            raise MirrorError(f"claim on an unknown agent {agent}")
        column, holder = self.slots.column(slot), self.accounts.row(account)
        self.widen()
        self.agents.used[row, column] += amount
        self.accounts.held[holder, column] += amount

    def add_placed(self, account: Account, number: int) -> None:
        """So many more sessions of an account are placed."""
        row = self.accounts.row(account)
        self.accounts.sessions[row] += number

    def add_kernels(self, agent: str, number: int) -> str:
        """So many more kernels are live on an agent; returns its group."""
        row = self.agents.row_of.get(agent)
        if row is None:
            raise MirrorError(f"attempt on an unknown agent {agent}")
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
        """Those of the sessions, one after the other, for which the quotas have no room; `counted` says that they are counted already."""
        if not quotas:
            return ()
        names = self.accounts.names
        concerned = {
            account: [subject for subject in subjects_of(names[account]) if subject in quotas]
            for account in set(holdings.accounts.tolist())
        }
        subjects = {subject for found in concerned.values() for subject in found}
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
            number = None
            if limit.max_sessions is not None:
                number = [limit.max_sessions - int(self.accounts.sessions[accounts].sum()) + int(mine.sum())]
            left[subject] = (amounts, number)
        self.widen()
        over = []
        for session, (account, total) in enumerate(zip(holdings.accounts.tolist(), totals.tolist(), strict=True)):
            mine_left = [left[subject] for subject in concerned[account]]
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
