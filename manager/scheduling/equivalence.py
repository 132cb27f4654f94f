"""Equivalence classes of sessions, found in a few vector steps.

A `Shape` is the subject of one pick of an agent: amounts, and needs that the agent must meet. An `EquivalenceClass` is
of sessions with equal kernels, mode and architecture: where one of them fails, all fail. A pass keeps what it learns
with shapes and classes, so a queue of 100,000 sessions of fifty classes costs fifty times one session.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from retinue.manager.scheduling.columns import Integers, Queue
    from retinue.manager.scheduling.lanes import Lanes

ANY_ARCHITECTURE = ""


class Needs(NamedTuple):
    """The needs of a kernel on its agent: an architecture (any, when it is empty),
    with all of the features in a set of bits.
    """

    architecture: str = ANY_ARCHITECTURE
    features: int = 0

    def weaker(self, other: Needs) -> bool:
        """Returns whether every agent that meets `other` meets these."""
        return self.architecture in (ANY_ARCHITECTURE, other.architecture) and not self.features & ~other.features


ANY_AGENT = Needs()
UNBOUNDED = 1 << 62
# One kernel, in the lane that counts them: in thousandths, as other slots.
KERNEL = 1000
NEVER = -1


@dataclass(slots=True, eq=False)
class Shape:
    """Amounts for one agent that meets `needs`, in lanes, and what the pass has learned about them."""

    packed: int
    needs: Needs
    # (lane, amount) where the amount is not 0.
    amounts: tuple[tuple[int, int], ...]
    # Guards of the slots it leaves alone.
    unrequested: int
    # No agent fits it, and none will in this pass.
    failed: bool = False
    # So many of it may still be placed, at most.
    room: int = UNBOUNDED
    # Whether smaller shapes that failed were looked up.
    compared: bool = False
    # How far down the order of agents none fits it, and the newest move of an agent that this takes account of.
    cursor: int = NEVER
    seen: int = 0
    # For rotation: agents passed over for good, each with the next one to look at.
    passed: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Sessions with equal kernels, mode and architecture."""

    kernels: tuple[Shape, ...]
    # All kernels on one agent.
    whole: Shape
    single_node: bool
    # Distinct shapes of the kernels with their numbers.
    groups: tuple[tuple[Shape, int], ...]
    # Amounts of all kernels, by lane.
    total: tuple[int, ...]
    failed: bool = False
    # Number of placements after which it found no room.
    failed_at: int = NEVER
    # The same, each spread over agents of one family of addresses; none where all agents reach each other.
    families: tuple[EquivalenceClass, ...] = ()


class Shapes:
    """The shapes of a pass, each amount with each of its needs once."""

    def __init__(self, lanes: Lanes) -> None:
        """No shape yet; amounts come in these lanes."""
        self._lanes = lanes
        self._known: dict[tuple[int, Needs], Shape] = {}

    def of(self, amounts: Sequence[int], needs: Needs) -> Shape:
        """Returns the shape of `amounts`, by lane."""
        packed = self._lanes.pack(amounts)
        shape = self._known.get((packed, needs))
        if shape is None:
            nonzero = tuple((lane, amount) for lane, amount in enumerate(amounts) if amount)
            shape = Shape(packed, needs, nonzero, self._lanes.zeros(packed))
            self._known[packed, needs] = shape
        return shape

    def with_features(self, shape: Shape, features: int) -> Shape:
        """Returns the shape of the same amounts that needs these features too."""
        needs = Needs(shape.needs.architecture, shape.needs.features | features)
        known = self._known.get((shape.packed, needs))
        if known is None:
            known = self._known[shape.packed, needs] = Shape(shape.packed, needs, shape.amounts, shape.unrequested)
        return known

    def all(self) -> Iterable[Shape]:
        """Returns every shape made so far."""
        return self._known.values()


def find_kinds(
    queue: Queue,
    rows: Integers,
    columns: Sequence[int],
    lanes: Lanes,
    shapes: Shapes,
    *,
    families: Collection[int] = (),
) -> tuple[list[EquivalenceClass], Integers]:
    """Returns the kinds of the sessions in `rows`, and the kind of each; lanes hold the slots in `columns`, then a
    count of kernels if there is one more lane. Sessions with wishes get a kind of their own:
    they are placed by themselves. `families` are bits of features: of agents without one in common.
    """
    sizes = queue.offsets[rows + 1] - queue.offsets[rows]
    starts = np.cumsum(sizes) - sizes
    owner_of_kernel = np.repeat(np.arange(len(rows)), sizes)
    ranks = np.arange(len(owner_of_kernel)) - starts[owner_of_kernel]
    kernels = queue.offsets[rows][owner_of_kernel] + ranks
    requests = queue.requests[kernels]
    features = np.zeros(len(kernels), np.int64) if queue.needs is None else queue.needs[kernels]
    first, shape_of = distinct_rows(np.column_stack((requests, features)))
    needed = features[first].tolist()
    amounts = [
        [row[column] for column in columns] + [KERNEL] * (lanes.count - len(columns))
        for row in requests[first].tolist()
    ]

    architectures, architecture_of = _codes(queue, rows)
    single = (queue.single_node[rows] | (sizes <= 1)).astype(np.int64)
    wishes = np.zeros(len(rows), np.int64)
    if queue.wishes:
        wishes[:] = np.where(np.isin(rows, np.fromiter(queue.wishes, np.int64, len(queue.wishes))), rows + 1, 0)
    sequence = _sequence_hash(shape_of, ranks, starts, sizes)
    labels = np.column_stack((sizes, single, architecture_of, wishes))
    representative, kind_of = distinct_rows(np.column_stack((labels, sequence)))
    # Equal hashes are almost surely, but not surely, equal sequences.
    if not np.array_equal(shape_of, shape_of[starts[representative[kind_of]][owner_of_kernel] + ranks]):
        representative, kind_of = _distinct_sequences(labels, shape_of, starts)

    kinds = []
    for session in representative.tolist():
        start, architecture = int(starts[session]), architectures[int(architecture_of[session])]
        numbers = shape_of[start : start + int(sizes[session])].tolist()
        counts = Counter(numbers)
        made = {number: shapes.of(amounts[number], Needs(architecture, needed[number])) for number in counts}
        together = reduce(or_, (needed[number] for number in counts), 0)
        total = tuple(
            sum(amounts[number][lane] * count for number, count in counts.items()) for lane in range(lanes.count)
        )
        kind = EquivalenceClass(
            kernels=tuple(made[number] for number in numbers),
            whole=shapes.of(total, Needs(architecture, together)),
            single_node=bool(single[session]),
            groups=tuple((made[number], count) for number, count in counts.items()),
            total=total,
        )
        if not kind.single_node:
            kind.families = tuple(_within(kind, family, shapes) for family in families)
        kinds.append(kind)
    return kinds, kind_of


def _within(kind: EquivalenceClass, family: int, shapes: Shapes) -> EquivalenceClass:
    """Returns a kind on agents of a family."""
    of_family = {id(shape): shapes.with_features(shape, family) for shape, _ in kind.groups}
    return replace(
        kind,
        kernels=tuple(of_family[id(shape)] for shape in kind.kernels),
        groups=tuple((of_family[id(shape)], count) for shape, count in kind.groups),
    )


def distinct_rows(matrix: Integers) -> tuple[Integers, Integers]:
    """Returns, of n x m integers, the index of one row of each value, and for each row which of those it equals."""
    if not len(matrix):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    mixed = np.zeros(len(matrix), np.uint64)
    for column in range(matrix.shape[1]):
        mixed = _mix(mixed ^ matrix[:, column].astype(np.uint64))
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    if not np.array_equal(matrix, matrix[first[inverse]]):
        _, first, inverse = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA'14): a bijection that spreads every bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _sequence_hash(shape_of: Integers, ranks: Integers, starts: Integers, sizes: Integers) -> Integers:
    hashes = np.zeros(len(sizes), np.uint64)
    filled = sizes > 0
    if filled.any():
        terms = _mix(_mix(shape_of.astype(np.uint64)) + ranks.astype(np.uint64))
        hashes[filled] = np.add.reduceat(terms, starts[filled])
    return hashes.view(np.int64)


def _distinct_sequences(labels: Integers, shape_of: Integers, starts: Integers) -> tuple[Integers, Integers]:
    known: dict[tuple[bytes, bytes], int] = {}
    representative: list[int] = []
    kind_of = np.zeros(len(labels), np.int64)
    for session, (start, size) in enumerate(zip(starts.tolist(), labels[:, 0].tolist(), strict=True)):
        kind_of[session] = known.setdefault(
            (labels[session].tobytes(), shape_of[start : start + size].tobytes()), len(known)
        )
        if len(known) > len(representative):
            representative.append(session)
    return np.array(representative, np.int64), kind_of


def _codes(queue: Queue, rows: Integers) -> tuple[list[str], Integers]:
    names = [ANY_ARCHITECTURE, *sorted(set(queue.architectures.values()) - {ANY_ARCHITECTURE})]
    codes = np.zeros(len(queue.owners), np.int64)
    if queue.architectures:
        number = {name: code for code, name in enumerate(names)}
        codes[list(queue.architectures)] = [number[name] for name in queue.architectures.values()]
    return names, codes[rows]
