"""Backend.AI's strategies for shares of devices and its families of slots that exclude each other,
as its vectors have them.

No backend offers shares of a device, so the agent does without. Amounts are in thousandths.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from retinue.agent.resources.core.allocation import WHOLE, AllocationError, InsufficientError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

QUANTUM = 10
"""Shares of a device are multiples of this."""


class FragmentedError(AllocationError):
    """There is as much left, but in parts of devices that are too small."""


class InvalidAmountError(AllocationError):
    """No attempt could ever get that amount."""


class InvalidCombinationError(AllocationError):
    """Slots that exclude each other."""


def allocate_unique(free: Mapping[str, int], amount: int) -> dict[str, int]:
    """Returns one device that is free, in the given order, for the amount 1; 0 asks for none."""
    if amount == 0:
        return {}
    if amount != WHOLE:
        raise InvalidAmountError("exactly 1 of such a slot can be asked for")
    for device, left in free.items():
        if left >= WHOLE:
            return {device: WHOLE}
    raise InsufficientError("no device is left")


def fill(free: Mapping[str, int], amount: int, *, quantum: int = QUANTUM, fragments: bool = True) -> dict[str, int]:
    """Fills one device after the other to its full, that with the most left first; ties in the given order.

    Shares are rounded down to the quantum. Without `fragments` they are equal,
    on as few devices as could hold the amount.
    """
    _check(free, amount)
    if not fragments:
        return _unfragmented(free, amount, quantum)
    given: dict[str, int] = {}
    for device in sorted(free, key=lambda device: -free[device]):
        if amount == 0:
            break
        if part := min(amount, free[device]):
            given[device] = part
            amount -= part
    return _rounded(free, given, quantum)


def spread(free: Mapping[str, int], amount: int) -> dict[str, int]:
    """Takes whole units, one by one from the device with the most left; ties in the given order."""
    if amount % WHOLE or amount < 0:
        raise InvalidAmountError("only whole units can be asked for")
    left = {device: units // WHOLE for device, units in free.items()}
    if amount // WHOLE > sum(left.values()):
        raise InsufficientError(f"{amount // WHOLE} asked for, {sum(left.values())} left")
    given: dict[str, int] = {}
    for _ in range(amount // WHOLE):
        device = max(left, key=lambda device: left[device])
        left[device] -= 1
        given[device] = given.get(device, 0) + WHOLE
    return _ordered(free, given)


def share_evenly(
    free: Mapping[str, int], amount: int, least: int = 0, *, quantum: int = QUANTUM, fragments: bool = True
) -> dict[str, int]:
    """Takes equal shares of as few devices as hold it; of a single one, the smallest that does.

    A device with less than `least` left is not used. What does not divide goes to the first ones. Shares are rounded
    down to the quantum. Without `fragments` as few devices are used as could hold the amount if all of them were free.
    """
    usable = {device: left // QUANTUM * QUANTUM for device, left in free.items() if left >= max(least, QUANTUM)}
    _check(usable, amount)
    if amount % QUANTUM:
        raise InvalidAmountError("shares are hundredths")
    if amount == 0:
        return {}
    if not fragments:
        return _unfragmented(usable, amount, quantum)
    if single := [device for device, left in usable.items() if left >= amount]:
        return _rounded(free, {min(single, key=lambda device: usable[device]): amount}, quantum)
    largest = sorted(usable, key=lambda device: -usable[device])
    number = next(n for n in range(2, len(largest) + 1) if sum(usable[device] for device in largest[:n]) >= amount)
    given: dict[str, int] = {}
    # Those with the least first: what they cannot take is divided among the others.
    for position, device in enumerate(sorted(largest[:number], key=lambda device: usable[device])):
        part = amount // (number - position) // QUANTUM * QUANTUM
        given[device] = min(usable[device], part)
        amount -= given[device]
    return _rounded(free, given, quantum)


def check_families(slots: Collection[str], families: Sequence[str]) -> None:
    """Raises InvalidCombinationError when the slots belong to more than one family, each of them a pattern."""
    found = {next((family for family in families if fnmatchcase(slot, family)), None) for slot in slots} - {None}
    if len(found) > 1:
        raise InvalidCombinationError(f"{' and '.join(sorted(slots))} exclude each other")


def _check(free: Mapping[str, int], amount: int) -> None:
    if amount < 0:
        raise InvalidAmountError("amounts are not negative")
    if amount > (left := sum(free.values())):
        raise InsufficientError(f"{amount / WHOLE:g} asked for, {left / WHOLE:g} left")


def _unfragmented(free: Mapping[str, int], amount: int, quantum: int) -> dict[str, int]:
    """Takes equal shares of as few devices as could hold the amount, the smallest that are left of those that do."""
    number = -(-amount // WHOLE)
    if number == 0:
        return {}
    share = amount // number // quantum * quantum
    fitting = sorted((device for device, left in free.items() if left >= share), key=lambda device: free[device])
    if len(fitting) < number:
        raise FragmentedError(f"{number} devices with {share / WHOLE:g} each asked for, {len(fitting)} left")
    return _rounded(free, dict.fromkeys(fitting[:number], share), quantum)


def _rounded(free: Mapping[str, int], given: Mapping[str, int], quantum: int) -> dict[str, int]:
    """Returns whole quanta of what is given. Raises InvalidAmountError when nothing is left of it."""
    rounded = {device: amount // quantum * quantum for device, amount in given.items()}
    if any(given.values()) and not any(rounded.values()):
        raise InvalidAmountError(f"less than {quantum / WHOLE:g} of a device cannot be asked for")
    return _ordered(free, rounded)


def _ordered(free: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
    return {device: given[device] for device in free if given.get(device)}
