"""Amounts of slots as people write them, and in the smallest unit: bytes for `mem`, thousandths for all others. Pure."""

from __future__ import annotations

import re

from retinue.agent.attempts import MEMORY

SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]{1,3}))?([kmgt]?)", re.IGNORECASE)
_SLOT = re.compile(r"[a-z][a-z0-9_.-]{0,62}")


def parse_amount(slot: str, text: str) -> int:
    """An amount of a slot, in the smallest unit; `mem` takes a binary suffix. Raises ValueError, naming what is wrong."""
    match = _AMOUNT.fullmatch(text)
    if _SLOT.fullmatch(slot) is None or match is None:
        raise ValueError(f"{f'{slot}={text}'!r} is not an amount of a slot")
    whole, fraction, suffix = match.group(1), match.group(2) or "", match.group(3).lower()
    thousandths = int(whole) * 1000 + int(fraction.ljust(3, "0"))
    if slot == MEMORY:
        return thousandths * SUFFIXES[suffix] // 1000
    if suffix:
        raise ValueError(f"{f'{slot}={text}'!r}: only an amount of mem has a suffix")
    return thousandths


def parse_slots(text: str) -> dict[str, int]:
    """Amounts from `cpu=4,mem=8g`, in the smallest unit. Raises ValueError, naming what is wrong."""
    slots: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, amount = part.partition("=")
        if name in slots:
            raise ValueError(f"{part!r}: slot {name} is given twice")
        slots[name] = parse_amount(name, amount)
    return slots


def format_amount(slot: str, amount: int) -> str:
    """An amount as people write it: the inverse of `parse_amount`, with the largest suffix that leaves a whole number."""
    if slot != MEMORY:
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    for suffix in ("t", "g", "m", "k"):
        if amount and amount % SUFFIXES[suffix] == 0:
            return f"{amount // SUFFIXES[suffix]}{suffix}"
    return str(amount)
