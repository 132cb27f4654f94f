"""Parses and formats amounts of slots: exact integers, of bytes for `mem` and `disk` and of thousandths for all others.

Requests, quotas, image labels and the capacity of agents are written as text (`"2"`, `"0.5"`, `"4g"`). Integers are
stored, summed and compared, so that no sum of claims is off by a rounding.
docs/reference/amounts.md is the grammar for users.
"""

from __future__ import annotations

import re

CPU, MEMORY, DISK = "cpu", "mem", "disk"
"""Slots of processor time (thousandths of a processor), memory, and the disk of work directories (bytes)."""
BYTE_SLOTS = frozenset({MEMORY, DISK})
"""The slots whose amounts are bytes."""
DEVICE_SUFFIX = ".device"
THOUSANDTHS = 1000
MAX_AMOUNT = 2**53
MAX_SLOT_NAME = 63

MIN_VM_MEMORY = 224 << 20
"""Bytes of `mem` that a virtual machine needs: a guest boots with the part of them that its emulator leaves."""

MIN_MEMORY, MIN_DISK = 1 << 20, 4 << 20
"""Bytes below which an amount is a mistake: nothing starts with less memory, and no file system is smaller."""
_LEAST = {MEMORY: MIN_MEMORY, DISK: MIN_DISK}
_LIKELY_GIBIBYTES, _LIKELY_MEBIBYTES = 64, 1 << 18

_SLOT = re.compile(r"[a-z][a-z0-9.-]*")
_NUMBER = r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
# As Kubernetes has both: one of them.
_DECIMAL = re.compile(rf"{_NUMBER}(?:e\+?(?P<exponent>[0-9]{{1,2}})|(?P<thousandths>m))?", re.IGNORECASE)
_BYTES_TEXT = re.compile(rf"{_NUMBER}(?:e\+?(?P<exponent>[0-9]{{1,2}})|(?P<suffix>[kmgtp])i?b?|b)?", re.IGNORECASE)
_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_PLACES = 3
# Longer numbers are out of range whatever their digits say; this also bounds the work on a hostile text.
_MAX_TEXT = 40


class AmountError(ValueError):
    """The name or amount of a slot is not valid; the text says why."""


def check_slot(slot: str) -> None:
    """Raises AmountError unless `slot` is a name: a lower-case letter, then letters, digits, `.` and `-`,
    at most 63 in all.
    """
    if len(slot) > MAX_SLOT_NAME or not _SLOT.fullmatch(slot):
        raise AmountError(
            f"slot name must be a-z, 0-9, . and -, begin with a letter, and have at most {MAX_SLOT_NAME} characters"
        )


def parse_amount(slot: str, text: str, *, zero: bool = False) -> int:
    """Returns bytes for BYTE_SLOTS, else thousandths: above 0, or with `zero` from 0, and at most 2**53.
    Raises AmountError.

    Bytes take the suffixes k, m, g, t, p (powers of 1,024) with an optional `b`, `i` or `ib`, in any case. Other slots
    take up to three decimal places, or thousandths as `500m`; slots named `….device` are whole. Both take `2e3`.
    """
    check_slot(slot)
    if not text:
        raise AmountError("amount is empty")
    if len(text) > _MAX_TEXT:
        raise AmountError(f"amount is longer than {_MAX_TEXT} characters")
    amount = _parse_bytes(slot, text) if slot in BYTE_SLOTS else _parse_thousandths(slot, text)
    if amount == 0 and not zero:
        raise AmountError("amount must be above 0; leave the slot out to ask for none")
    if amount > MAX_AMOUNT:
        raise AmountError(f"amount is larger than {format_amount(slot, MAX_AMOUNT - MAX_AMOUNT % _unit(slot))}")
    return amount


def parse_asked(slot: str, text: str, *, zero: bool = False) -> int:
    """Returns what `parse_amount` returns, of an amount in a request or a quota.

    Raises AmountError also for so few bytes that their suffix is missing.
    """
    amount = parse_amount(slot, text, zero=zero)
    least = _LEAST.get(slot, 0)
    if 0 < amount < least:
        meant = ""
        if text.isdecimal() and amount < _LIKELY_MEBIBYTES:
            meant = f"; did you mean {amount}{'g' if amount <= _LIKELY_GIBIBYTES else 'm'}?"
        raise AmountError(f"{text} is {amount} bytes, and the least is {format_amount(slot, least)}{meant}")
    return amount


def parse_slots(text: str) -> dict[str, int]:
    """Parses `cpu=4,mem=8g` into amounts from 0, by slot. Raises AmountError."""
    slots: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        slot, _, amount = part.partition("=")
        if slot in slots:
            raise AmountError(f"{part!r}: slot {slot} is given twice")
        try:
            slots[slot] = parse_amount(slot, amount, zero=True)
        except AmountError as error:
            raise AmountError(f"{part!r} is not an amount of a slot: {error}") from error
    return slots


def format_amount(slot: str, amount: int) -> str:
    """Returns the canonical text, which `parse_amount` reads back to the same number; 0 and negative amounts (a lack, a
    difference) have a text too. Bytes take the largest suffix that leaves a whole number.
    """
    if amount < 0:
        return "-" + format_amount(slot, -amount)
    if slot in BYTE_SLOTS:
        for suffix, power in reversed(_POWERS.items()):
            if amount and amount % (1 << power) == 0:
                return f"{amount >> power}{suffix}"
        return str(amount)
    whole, rest = divmod(amount, THOUSANDTHS)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def base_amount(slot: str, amount: int) -> float:
    """Returns an amount in bytes for BYTE_SLOTS, else in units, as monitoring has it: `2.5` cores."""
    return amount if slot in BYTE_SLOTS else amount / THOUSANDTHS


def _unit(slot: str) -> int:
    return THOUSANDTHS if slot.endswith(DEVICE_SUFFIX) else 1


def _parse_bytes(slot: str, text: str) -> int:
    found = _digits(_BYTES_TEXT, text)
    if found is None:
        raise AmountError(
            f"amount of {slot} must be a positive number of bytes, or one with a suffix k, m, g, t or p, such as 512m or 4g"
        )
    match, whole, fraction = found
    scale = 1 << _POWERS[match["suffix"].lower()] if match["suffix"] else 1
    divisor = int("1" + "0" * len(fraction))
    scaled, rest = divmod(int(whole + fraction) * scale, divisor)
    if rest:
        raise AmountError(f"amount of {slot} must come to a whole number of bytes")
    return scaled


def _parse_thousandths(slot: str, text: str) -> int:
    found = _digits(_DECIMAL, text)
    if found is None:
        raise AmountError(
            "amount must be a positive decimal number, or one of thousandths with the suffix m, such as 2, 0.5 or 500m"
        )
    match, whole, fraction = found
    places = 0 if match["thousandths"] else _PLACES
    fraction = fraction.rstrip("0")
    if len(fraction) > places:
        raise AmountError(f"amount must have at most {_PLACES} decimal places")
    amount = int(whole) * (1 if match["thousandths"] else THOUSANDTHS) + int(fraction.ljust(places, "0") or "0")
    if amount % _unit(slot):
        raise AmountError(f"amount of {slot} must be a whole number")
    return amount


def _digits(pattern: re.Pattern[str], text: str) -> tuple[re.Match[str], str, str] | None:
    """Returns the match of a number, and its digits before and after the point; None for text that is none."""
    match = pattern.fullmatch(text)
    if match is None or not text.isascii() or not (match["whole"] or match["fraction"]):
        return None
    whole, fraction, exponent = match["whole"], match["fraction"] or "", int(match["exponent"] or 0)
    fraction = fraction.ljust(exponent, "0")
    return match, whole + fraction[:exponent] or "0", fraction[exponent:]
