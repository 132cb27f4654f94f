"""The waiting sessions in the scheduler's cache. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from retinue.manager.scheduler.core.growable import Slots, empty, empty_amounts, grown, widened

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from numpy.typing import NDArray

    from retinue.manager.domain.scheduling.records import PendingSession
    from retinue.manager.scheduling.columns import Integers, Mask

# Queues are packed when half of their rows are gone, and they are not small.
_PACKED_ABOVE = 1024


@dataclass(frozen=True, slots=True)
class PendingReason:
    """The reason why a session waits, as it is written into its row. `explanation` is JSON."""

    code: str
    message: str
    explanation: str


class _Shape(NamedTuple):
    first_kernel: int
    size: int
    hostnames: int


class PendingTable:
    """The sessions that wait, of all groups: rows in any order, with holes."""

    def __init__(self, slots: Slots, needed: Callable[[str, bool, bool], int]) -> None:
        """`needed` says what a kernel needs of an agent, as bits, by its isolation,
        and whether it has an image or serves SFTP.
        """
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
        self.nominated_until: NDArray[np.float64] = empty(np.float64)
        # Tries as counted and as written; why it waits as found and as written, as numbers of notes.
        self.tries: Integers = empty(np.int32)
        self.written_tries: Integers = empty(np.int32)
        self.reason: Integers = empty(np.int32)
        self.written_reason: Integers = empty(np.int32)
        # When words or tries were written last, by the writer's clock; 0 for never.
        self.written_at: NDArray[np.float64] = empty(np.float64)
        self.hostnames: Integers = empty(np.int32)
        self.first_kernel: Integers = empty(np.int64)
        self.size: Integers = empty(np.int32)
        self.kernel_count = 0
        self._shapes: dict[tuple[str, bool], _Shape] = {}
        # How often rows were renumbered.
        self.packed = 0
        self.requests = empty_amounts()
        self.needs: Integers = empty(np.int16)
        # What few sessions have, by row: the row as read.
        self.constrained: dict[int, PendingSession] = {}
        self.groups: list[str] = []
        self._group_of: dict[str, int] = {}
        self.hostname_sets: list[tuple[str, ...]] = []
        self._hostname_of: dict[tuple[str, ...], int] = {}
        self.reasons: list[PendingReason | None] = []
        self._reason_of: dict[tuple[str, str, int], int] = {}

    _COLUMNS = (
        "ids", "alive", "single_node", "clearing", "group", "account", "sequence", "priority", "created", "next_try", "nominated_until", "tries",
        "written_tries", "reason",
        "written_reason", "written_at", "hostnames", "first_kernel", "size",
    )  # fmt: skip

    def put(self, row: PendingSession, account: int) -> None:
        """Puts a session as read in place of what was known of it. Raises ValueError for
        one that no pass could read.
        """
        self.remove(row.id)
        _check_agents(row)
        number, shape = self.count, self._shape(row.kernels or "[]", sftp=row.sftp)
        if shape.size != row.cluster_size:
            raise ValueError(f"it has {shape.size} of its {row.cluster_size} kernels")
        self.count += 1
        if number >= len(self.alive):
            for name in self._COLUMNS:
                setattr(self, name, grown(getattr(self, name), self.count))
        self.row_of[row.id] = number
        self.ids[number] = row.id
        reason = self.reason_number(row.reason, row.message, shape.hostnames)
        self.alive[number] = True
        self.single_node[number] = row.cluster_mode == "SINGLE_NODE"
        self.clearing[number] = row.clearing
        self.group[number] = self.group_number(row.resource_group)
        self.account[number] = account
        self.sequence[number] = row.sequence
        self.priority[number] = row.priority
        self.next_try[number] = max(row.next_try, row.earliest_start_time or 0.0)
        self.created[number], self.nominated_until[number] = row.created, row.nominated_until
        self.tries[number] = self.written_tries[number] = row.tries
        self.reason[number] = self.written_reason[number] = reason
        self.written_at[number] = 0.0
        self.hostnames[number] = shape.hostnames
        self.first_kernel[number], self.size[number] = shape.first_kernel, shape.size
        if is_constrained(row):
            self.constrained[number] = row

    def _shape(self, text: str, *, sftp: bool) -> _Shape:
        """Kernels as read, in rows of `requests` that all sessions with the same kernels share."""
        shape = self._shapes.get((text, sftp))
        if shape is None:
            kernels, first = json.loads(text), self.kernel_count
            self.kernel_count += len(kernels)
            self.requests, self.needs = grown(self.requests, self.kernel_count), grown(self.needs, self.kernel_count)
            for position, kernel in enumerate(kernels, first):
                self.needs[position] = self._needed(kernel["isolation"], bool(kernel["image"]), sftp)
                for slot, amount in kernel["slots"].items():
                    column = self._slots.column(slot)
                    if column >= self.requests.shape[1]:
                        self.requests = widened(self.requests, column + 1)
                    self.requests[position, column] = amount
            hostnames = self.hostname_set(tuple(kernel["hostname"] for kernel in kernels))
            shape = self._shapes[text, sftp] = _Shape(first, len(kernels), hostnames)
        return shape

    def remove(self, session_id: uuid.UUID) -> str | None:
        """Forgets a session; returns its group when it was known."""
        number = self.row_of.pop(session_id, None)
        if number is None:
            return None
        self.alive[number] = False
        self.ids[number] = None
        self.constrained.pop(number, None)
        group: str = self.groups[int(self.group[number])]
        if self.count > _PACKED_ABOVE and len(self.row_of) < self.count // 2:
            self._pack()
        return group

    def widen(self) -> None:
        """Makes room for new slots."""
        self.requests = widened(self.requests, len(self._slots.names))

    def group_number(self, group: str) -> int:
        """Returns the number of a group."""
        if group not in self._group_of:
            self._group_of[group] = len(self.groups)
            self.groups.append(group)
        return self._group_of[group]

    def hostname_set(self, hostnames: tuple[str, ...]) -> int:
        """Returns the number of hostnames by rank: most sessions have the same few."""
        if hostnames not in self._hostname_of:
            self._hostname_of[hostnames] = len(self.hostname_sets)
            self.hostname_sets.append(hostnames)
        return self._hostname_of[hostnames]

    def reason_number(
        self, code: str, message: str, hostnames: int, explanation: Callable[[], str] = lambda: "{}"
    ) -> int:
        """Returns the number of a reason: its explanation follows from its message and from who the kernels are."""
        key = (code, message, hostnames)
        if key not in self._reason_of:
            self._reason_of[key] = len(self.reasons)
            self.reasons.append(PendingReason(code, message, explanation()))
        return self._reason_of[key]

    def rows_of(self, group: str) -> Integers:
        """Returns the rows of a group's sessions in order of arrival."""
        number = self._group_of.get(group)
        if number is None:
            return np.zeros(0, np.int64)
        rows = np.flatnonzero(self.alive[: self.count] & (self.group[: self.count] == number))
        return rows[np.argsort(self.sequence[rows], kind="stable")]

    def kernels_of(self, rows: Integers) -> tuple[Integers, Integers]:
        """Returns the rows of `requests` of all kernels of the sessions in `rows`, one session after the other,
        and where each session's begin.
        """
        sizes = self.size[rows].astype(np.int64)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        kernels = np.repeat(self.first_kernel[rows] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return kernels, offsets

    def prune_reasons(self) -> None:
        """Forgets notes that no session has any more, once they are many."""
        if len(self.reasons) <= 2 * len(self.row_of) + _PACKED_ABOVE:
            return
        rows = np.flatnonzero(self.alive[: self.count])
        kept = np.unique(np.r_[self.reason[rows], self.written_reason[rows]])
        renumbered = np.zeros(len(self.reasons), np.int32)
        renumbered[kept] = np.arange(len(kept))
        key_of = {number: key for key, number in self._reason_of.items()}
        self.reason[rows], self.written_reason[rows] = (
            renumbered[self.reason[rows]],
            renumbered[self.written_reason[rows]],
        )
        self._reason_of = {key_of[number]: position for position, number in enumerate(kept.tolist())}
        self.reasons = [self.reasons[number] for number in kept.tolist()]

    def _pack(self) -> None:
        self.packed += 1
        rows = np.flatnonzero(self.alive[: self.count])
        used = set(self.first_kernel[rows].tolist())
        shapes = {key: shape for key, shape in self._shapes.items() if shape.first_kernel in used}
        kernels = [kernel for shape in shapes.values() for kernel in range(shape[0], shape[0] + shape.size)]
        first_of = np.zeros(self.kernel_count + 1, np.int64)
        self._shapes, first = {}, 0
        for key, shape in shapes.items():
            first_of[shape.first_kernel] = first
            self._shapes[key] = shape._replace(first_kernel=first)
            first += shape.size
        for name in self._COLUMNS:
            setattr(self, name, getattr(self, name)[rows].copy())
        self.first_kernel = first_of[self.first_kernel]
        self.requests, self.needs = self.requests[kernels], self.needs[kernels]
        self.count, self.kernel_count = len(rows), len(kernels)
        moved = {number: position for position, number in enumerate(rows.tolist())}
        self.constrained = {moved[number]: row for number, row in self.constrained.items()}
        self.row_of = {session_id: position for position, session_id in enumerate(self.ids.tolist())}


def _check_agents(row: PendingSession) -> None:
    """Raises ValueError unless whatever names agents is a list of names: a pass would fail for all of its group."""
    named: dict[str, object] = {"agents": row.agents, "failed_agents": row.failed_agents, "nominated": row.nominated}
    for member, names in named.items():
        if names is not None and not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"{member} is no list of agents")


def is_constrained(row: PendingSession) -> bool:
    """Returns whether a waiting session has constraints of its own, so that its row is kept:
    see `snapshot.held_back` and `snapshot.wishes_of`.
    """
    return bool(
        row.failed_agents
        or row.clearing
        or row.next_try
        or row.earliest_start_time
        or row.hold
        or row.open_dependencies
        or row.agents
        or row.replica_placement
        or row.architecture
        or row.time_limit_seconds
        or row.nominated
    )
