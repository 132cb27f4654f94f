"""The agents in the scheduler's cache: what each has, what is held of it, and whether it counts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

import numpy as np
from numpy.typing import NDArray

from retinue.manager.domain.scheduling.records import AgentRecord, AgentState
from retinue.manager.domain.session.ipam import check_underlay
from retinue.manager.domain.session.runtime_features import families
from retinue.manager.scheduler.core.growable import Slots, empty, empty_amounts, grown, widened
from retinue.manager.scheduling.columns import Integers, Mask


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
        """`offered` says what agents with certain backends offer, as bits below those of FAMILIES."""
        self._slots = slots
        self._offered = offered
        self.ids: list[str] = []
        self.row_of: dict[str, int] = {}
        self.groups: list[str] = []
        self.architectures: list[str] = []
        self.underlays: list[tuple[str, int]] = []
        self.reachable_networks: list[tuple[IPv4Network, ...]] = []
        self.capacity, self.used = empty_amounts(), empty_amounts()
        self.kernels: Integers = empty(np.int64)
        self.offers: Integers = empty(np.int64)
        self.counts: Mask = empty(np.bool_)
        self.schedulable: Mask = empty(np.bool_)
        self._indices: dict[str, AgentIndex] = {}

    def put(self, row: AgentRecord) -> set[str]:
        """Puts an agent as read. Returns the groups affected. Raises ValueError, TypeError, AttributeError;
        then it does not count.
        """
        number = self.row_of.get(row.id)
        groups = {row.resource_group}
        if number is None:
            number = self.row_of[row.id] = len(self.ids)
            self.ids.append(row.id)
            self.groups.append("")
            self.architectures.append("")
            self.underlays.append(("", 0))
            self.reachable_networks.append(())
            self.capacity, self.used = grown(self.capacity, number + 1), grown(self.used, number + 1)
            self.kernels, self.offers = grown(self.kernels, number + 1), grown(self.offers, number + 1)
            self.counts, self.schedulable = grown(self.counts, number + 1), grown(self.schedulable, number + 1)
        else:
            groups.add(self.groups[number])
        # Whatever goes wrong below, it does not count.
        self.counts[number] = self.schedulable[number] = False
        self.groups[number] = row.resource_group
        self.architectures[number] = row.architecture
        self.underlays[number] = (check_underlay(row.underlay_address), row.underlay_mtu)
        self.reachable_networks[number] = tuple(map(IPv4Network, row.reachable_networks))
        columns = [self._slots.column(slot) for slot in row.capacity]
        self.widen()
        self.capacity[number] = 0
        self.capacity[number, columns] = list(row.capacity.values())
        self.offers[number] = self._offered(row.backends) | families(row.underlay_address)
        self.counts[number] = row.state in (AgentState.ALIVE, AgentState.SUSPECT) and not row.revoked
        self.schedulable[number] = row.state is AgentState.ALIVE and not (row.drained or row.revoked or row.blocked)
        for group in groups:
            self._indices.pop(group, None)
        return groups

    def remove(self, agent_id: str) -> set[str]:
        """Stops counting an agent whose row is gone. Returns the groups affected."""
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
        """Returns the agents of a group that count."""
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
