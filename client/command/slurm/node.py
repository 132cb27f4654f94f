"""Agents as nodes of Slurm, and resource groups as its partitions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client import enum_names
from retinue.client.command.slurm.job import NULL, megabytes
from retinue.manager.v1 import fleet_service_pb2
from retinue.rpc.core.amounts import DISK, MEMORY, AmountError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEFAULT_GROUP = "default"
"""The resource group of sessions that name none."""

_THOUSANDTHS, _MEBIBYTE = 1000, 2**20
_GPU = "cuda.device"
# Long states with their short ones, which sinfo prints.
SHORT_STATES = {
    "allocated": "alloc",
    "mixed": "mix",
    "idle": "idle",
    "draining": "drng",
    "drained": "drain",
    "down": "down",
    "unknown": "unk",
}


@dataclass(frozen=True, slots=True)
class Node:
    """An agent as a node. What others than administrators do not see of it counts as nothing."""

    agent: fleet_service_pb2.Agent

    @property
    def name(self) -> str:
        """Returns its id."""
        return self.agent.id

    @property
    def state(self) -> str:
        """Returns its state in Slurm's long word, with `*` where it does not answer."""
        agent = self.agent
        if agent.state == fleet_service_pb2.AGENT_STATE_LOST:
            return "down*"
        if agent.state == fleet_service_pb2.AGENT_STATE_JOINING:
            return "unknown*"
        word = self._load()
        if agent.drained:
            word = "drained" if word == "idle" else "draining"
        elif self.blocking:
            word = "down"
        return word if agent.state == fleet_service_pb2.AGENT_STATE_ALIVE else f"{word}*"

    def _load(self) -> str:
        if not self.agent.kernels and not self.agent.occupied:
            return "idle"
        return "allocated" if self.cpus_allocated >= self.cpus else "mixed"

    @property
    def short_state(self) -> str:
        """Returns its state as sinfo prints it."""
        word = self.state.rstrip("*")
        return SHORT_STATES[word] + self.state[len(word) :]

    @property
    def blocking(self) -> Sequence[fleet_service_pb2.AgentCondition]:
        """Returns the conditions for which nothing is placed there."""
        return [condition for condition in self.agent.conditions if condition.blocks_placement]

    @property
    def reason(self) -> str:
        """Returns why nothing is placed there, in words."""
        if self.blocking:
            return self.blocking[0].message
        if self.agent.drained:
            return "drained by an administrator"
        return "Not responding" if self.state.startswith("down") else "none"

    @property
    def reason_time(self) -> float | None:
        """Returns since when."""
        return enum_names.time_of(self.blocking[0], "since_time") if self.blocking else None

    @property
    def cpus(self) -> int:
        """Returns its processors."""
        return _amount(self.agent.capacity, "cpu") // _THOUSANDTHS

    @property
    def cpus_allocated(self) -> int:
        """Returns those that sessions hold, rounded up."""
        return -(-_amount(self.agent.occupied, "cpu") // _THOUSANDTHS)

    @property
    def memory(self) -> int:
        """Returns its memory in megabytes."""
        return _amount(self.agent.capacity, MEMORY) // _MEBIBYTE

    @property
    def memory_allocated(self) -> int:
        """Returns what sessions hold of it, in megabytes."""
        return _amount(self.agent.occupied, MEMORY) // _MEBIBYTE

    @property
    def disk(self) -> int:
        """Returns its disk for kernels in megabytes."""
        return _amount(self.agent.capacity, DISK) // _MEBIBYTE

    @property
    def gpus(self) -> int:
        """Returns its GPUs."""
        return _amount(self.agent.capacity, _GPU) // _THOUSANDTHS

    @property
    def gres(self) -> str:
        """Returns its GPUs as Slurm lists them."""
        return f"gpu:{self.gpus}" if self.gpus else NULL

    @property
    def is_idle(self) -> bool:
        """Returns whether it takes jobs and has none."""
        return self.state == "idle"

    @property
    def is_used(self) -> bool:
        """Returns whether it takes jobs and has some."""
        return self.state in ("allocated", "mixed")


@dataclass(frozen=True, slots=True)
class Partition:
    """A resource group with its agents."""

    name: str
    nodes: tuple[Node, ...]

    @property
    def marked_name(self) -> str:
        """Returns its name, with `*` if jobs that name none go there."""
        return f"{self.name}*" if self.name == DEFAULT_GROUP else self.name

    @property
    def cpus(self) -> int:
        """Returns the processors of its nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def tres(self) -> str:
        """Returns what its nodes have together, as Slurm lists it."""
        gpus = sum(node.gpus for node in self.nodes)
        memory = megabytes(sum(node.memory for node in self.nodes) * _MEBIBYTE)
        return f"cpu={self.cpus},mem={memory},node={len(self.nodes)}" + (f",gres/gpu={gpus}" if gpus else "")


def partitions_of(
    groups: Iterable[fleet_service_pb2.ResourceGroup], agents: Iterable[fleet_service_pb2.Agent]
) -> list[Partition]:
    """Returns resource groups as partitions, by name, each with its agents."""
    nodes = [Node(agent) for agent in agents]
    return [
        Partition(group.name, tuple(node for node in nodes if node.agent.resource_group == group.name))
        for group in sorted(groups, key=lambda group: group.name)
    ]


def _amount(amounts: Mapping[str, str], name: str) -> int:
    try:
        return parse_amount(name, amounts[name]) if name in amounts else 0
    except AmountError:
        # As a later version of the server writes it.
        return 0
