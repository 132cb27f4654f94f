"""Chooses cores and devices for a kernel, near each other. Pure; amounts are in thousandths.

The choice near other devices is that of Backend.AI. `holdings` takes whole cores and whole GPUs.
Shares of a GPU are offered by no runtime: the driver enforces no share of one, and what is not enforced is not offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WHOLE = 1000


class AllocationError(Exception):
    """Devices cannot be given as asked for; the text says why."""


class InsufficientError(AllocationError):
    """There is not so much left."""


def nearest(groups: Mapping[int, Sequence[str]], chosen: Sequence[int]) -> list[list[str]]:
    """Devices by memory node that come first: those on the nodes of what was chosen before, else the largest group."""
    nodes = list(dict.fromkeys(node for node in chosen if groups.get(node)))
    if not nodes:
        # Of the same size, the first one.
        nodes = sorted(groups, key=lambda node: -len(groups[node]))[:1]
    return [list(groups[node]) for node in nodes]


def choose_cores(free: Mapping[int, Sequence[int]], count: int, near: Sequence[int] = ()) -> tuple[int, ...] | None:
    """Returns so many cores out of those free by memory node, on as few nodes as can be;
    None when there are not so many.

    Nodes in `near` come first. One that just holds them is taken before one with more: large ones stay whole.
    """
    if count > sum(map(len, free.values())):
        return None

    def order(node: int) -> tuple[bool, bool, int, int]:
        size, wanted = len(free[node]), count - len(chosen)
        return node not in near, size < wanted, size if size >= wanted else -size, node

    chosen: list[int] = []
    left = dict(free)
    while len(chosen) < count:
        node = min(left, key=order)
        chosen += sorted(left.pop(node))[: count - len(chosen)]
    return tuple(sorted(chosen))
