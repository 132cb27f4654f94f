"""Computes what a node of a cluster has for kernels: its allocatable, less what pods of others request. Pure."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from typing import TYPE_CHECKING

from lightkube.utils.quantity import parse_quantity

from retinue.agent.kubernetes.core.pod_spec import AGENT_LABEL, GPU, STORAGE
from retinue.agent.kubernetes.core.pod_state import FAILED, SUCCEEDED
from retinue.agent.resources.core.allocation import WHOLE
from retinue.agent.resources.core.holdings import CUDA
from retinue.rpc.core.amounts import CPU, DISK, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lightkube.models.core_v1 import Container
    from lightkube.resources.core_v1 import Pod

# Slots by the cluster's name of the resource, each with how many of its units are one of the cluster's.
_SLOTS = {"cpu": (CPU, 1000), "memory": (MEMORY, 1), STORAGE: (DISK, 1), GPU: (CUDA, WHOLE)}

# Powers of ten of suffixes that lightkube does not know.
_SMALL = {"n": -9, "u": -6}


def offered(allocatable: Mapping[str, str], foreign: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the amounts of slots that kernels may have, given what each foreign pod requests.
    Raises ValueError for what is no quantity.
    """
    amounts = {
        slot: int((_quantity(allocatable[name]) * unit).to_integral_value(ROUND_FLOOR))
        for name, (slot, unit) in _SLOTS.items()
        if name in allocatable
    }
    for requests in foreign:
        for slot in amounts.keys() & requests.keys():
            amounts[slot] -= requests[slot]
    return {slot: max(0, amount) for slot, amount in amounts.items()}


def full_disk(conditions: Iterable[tuple[str, str, str]]) -> str:
    """Returns what kubelet says of a disk that is too full for pods, given type, status and message of each condition
    of the node; empty when none is.
    """
    return next((text or kind for kind, status, text in conditions if (kind, status) == ("DiskPressure", "True")), "")


def is_foreign(pod: Pod, agent_id: str, namespace: str) -> bool:
    """Returns whether a pod takes from its node what this agent does not count already."""
    metadata, phase = pod.metadata, pod.status.phase if pod.status is not None else None
    if metadata is None or phase in {FAILED, SUCCEEDED}:
        return False
    return metadata.namespace != namespace or (metadata.labels or {}).get(AGENT_LABEL) != agent_id


def requests_of(pod: Pod) -> dict[str, int]:
    """Returns what a scheduler counts for a pod, in units of slots. Raises ValueError for what is no quantity.

    That is the largest of what runs at a time: all containers beside each other, or one of those that run first, each
    with the sidecars that were started before.
    """
    spec = pod.spec
    if spec is None:
        return {}
    together: dict[str, int] = {}
    for container in spec.containers:
        together = _sum(together, _amounts(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for first in spec.initContainers or ():
        if first.restartPolicy == "Always":
            sidecars = _sum(sidecars, _amounts(first))
            peak = _largest(peak, sidecars)
        else:
            peak = _largest(peak, _sum(sidecars, _amounts(first)))
    effective = _largest(_sum(together, sidecars), peak)
    if spec.resources is not None:
        # Given for the pod as a whole, which counts instead.
        effective |= _in_slots(spec.resources.requests or {})
    return _sum(effective, _in_slots(spec.overhead or {}))


def _amounts(container: Container) -> dict[str, int]:
    return _in_slots((container.resources.requests if container.resources is not None else None) or {})


def _in_slots(quantities: Mapping[str, str]) -> dict[str, int]:
    return {
        slot: int((_quantity(quantities[name]) * unit).to_integral_value(ROUND_CEILING))
        for name, (slot, unit) in _SLOTS.items()
        if name in quantities
    }


def _quantity(text: str) -> Decimal:
    power = _SMALL.get(text[-1:])
    try:
        found = parse_quantity(text) if power is None else Decimal(text[:-1]).scaleb(power)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no quantity") from error
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    return found


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {slot: one.get(slot, 0) + other.get(slot, 0) for slot in one.keys() | other.keys()}


def _largest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {slot: max(one.get(slot, 0), other.get(slot, 0)) for slot in one.keys() | other.keys()}
