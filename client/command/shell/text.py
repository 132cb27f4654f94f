"""Values as people read them; nothing that others wrote can move the cursor or colour the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client import enum_names
from retinue.client.command.shell.printable import safe
from retinue.rpc.core.amounts import BYTE_SLOTS, AmountError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

_SHORT_ID = 8
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = ("", "k", "m", "g", "t", "p")
_KILO = 1024
# Of an amount of bytes as it was asked for: 24684096k is a number that nobody reads.
_LONGEST_EXACT = 6


def short_id(identity: str) -> str:
    """Returns the start of an id, long enough to be used in its place."""
    return safe(identity[:_SHORT_ID])


def span(seconds: float | None) -> str:
    """Returns a length of time, roughly: `42s`, `3m10s`, `5h2m`, `12d`; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE}m"
    return f"{whole // _DAY}d"


def size(count: float | None, exact: int = 0) -> str:
    """Returns a number of bytes for people: `512`, `1.5m`, `12g`; of large numbers with `exact` decimal places."""
    if count is None:
        return "-"
    unit = 0
    while count >= _KILO and unit < len(_UNITS) - 1:
        count /= _KILO
        unit += 1
    if exact and unit:
        return f"{count:.{exact}f}".removesuffix(f".{'0' * exact}") + _UNITS[unit]
    return f"{count:.0f}{_UNITS[unit]}" if count >= 10 or unit == 0 else f"{count:.1f}{_UNITS[unit]}"  # noqa: PLR2004


def since(message: Message, field: str, now: float) -> str:
    """Returns how long ago a Timestamp field was, at `now` in seconds since 1970; `-` when unset."""
    moment = enum_names.time_of(message, field)
    return "-" if moment is None else span(now - moment)


def amounts(slots: Mapping[str, str]) -> str:
    """Returns amounts by slot name: `cpu=2 mem=4g`; bytes that are no round number roughly: `mem=23.5g`."""
    return safe(" ".join(f"{name}={_amount(name, slots[name])}" for name in sorted(slots))) or "-"


def _amount(slot: str, text: str) -> str:
    if slot not in BYTE_SLOTS or len(text) <= _LONGEST_EXACT:
        return text
    try:
        return size(parse_amount(slot, text, zero=True), exact=1)
    except AmountError:
        # Of a manager whose amounts this version does not know.
        return text


def or_dash(text: str) -> str:
    """Returns the text, safe; `-` when empty."""
    return safe(text) or "-"
