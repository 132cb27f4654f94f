"""Runs vectors on the choice of devices on a node: nearness against the agent's functions,
shares against `device_shares`.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from retinue.agent.resources.core import allocation
from retinue.agent.resources.core.allocation import AllocationError, InsufficientError
from tests.vectors import device_shares
from tests.vectors.device_shares import FragmentedError, InvalidAmountError, InvalidCombinationError

_NAMES = {
    FragmentedError: "fragmented",
    InsufficientError: "insufficient",
    InvalidAmountError: "invalid-argument",
    InvalidCombinationError: "invalid-combination",
}


def _thousandths(text: str) -> int:
    try:
        return int(Decimal(text) * 1000)
    except InvalidOperation:
        raise AssertionError(f"{text!r} is no amount of a device") from None


def _grain(given: dict[str, Any]) -> dict[str, Any]:
    """How finely devices are shared, where a vector says it: `quantum` of a device,
    and whether it may be left in fragments.
    """
    quantum = {"quantum": _thousandths(given["quantum"])} if "quantum" in given else {}
    return {**quantum, "fragments": given.get("allow_fragmentation", True)}


def _step(given: dict[str, Any], free: dict[str, int], step: Any) -> dict[str, int]:
    if isinstance(step, dict) and "amount" not in step:
        device_shares.check_families(step, given["exclusive"])
        raise AssertionError(f"{step} was to be refused")
    amount = _thousandths(step["amount"] if isinstance(step, dict) else step)
    if given.get("slot_type") == "unique":
        return device_shares.allocate_unique(free, amount)
    if given["strategy"] == "fill":
        return device_shares.fill(free, amount, **_grain(given))
    if given["map"] == "discrete":
        return device_shares.spread(free, amount)
    least = _thousandths(step["min_memory"]) if isinstance(step, dict) else 0
    return device_shares.share_evenly(free, amount, least, **_grain(given))


def run_allocation(vector: dict[str, Any]) -> None:
    given = vector["input"]
    assert given["map"] in {"discrete", "fraction"}
    assert given["strategy"] in {"fill", "evenly"}
    assert set(given.get("device_slots", given["devices"])) == set(given["devices"])
    free = {device: _thousandths(amount) for device, amount in given["devices"].items()}
    results: list[Any] = []
    for step in given["steps"]:
        try:
            result = _step(given, free, step)
        except AllocationError as error:
            results.append(_NAMES[type(error)])
            continue
        results.append({device: Decimal(amount) / 1000 for device, amount in result.items()})
        if not given.get("free_after_each_step"):
            free = {device: left - result.get(device, 0) for device, left in free.items()}
    expected = [
        result if isinstance(result, str) else {device: Decimal(amount) for device, amount in result.items()}
        for result in vector["expected"]["results"]
    ]
    # Where the vector does not distinguish fragments from what is missing.
    if "fragmented" not in expected:
        results = ["insufficient" if result == "fragmented" else result for result in results]
    assert results == expected


def run_affinity(vector: dict[str, Any]) -> None:
    given = vector["input"]
    cpus = {int(node): names for node, names in given["cpus"].items()}
    gpus = {int(node): [names] if isinstance(names, str) else names for node, names in given["gpus"].items()}
    nodes = {name: node for groups in (cpus, gpus) for node, names in groups.items() for name in names}
    results = [
        allocation.nearest(cpus if query["want"] == "cpu" else gpus, [nodes[name] for name in query["chosen"]])
        for query in given["queries"]
    ]
    assert results == vector["expected"]["primary_groups"]


RUNNERS = {"device_allocation": run_allocation, "device_affinity": run_affinity}
