"""Single values of agents' messages. Each function returns a valid value or raises InvalidReportError.

Text is cleaned instead: nothing depends on it, it is only shown, and must be fit for the database and for terminals.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import math
import re
import uuid
from typing import TYPE_CHECKING

from retinue.rpc import times
from retinue.rpc.core.amounts import BYTE_SLOTS, DISK, MAX_AMOUNT, AmountError, check_slot
from retinue.rpc.core.reasons import AgentConditionReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    from retinue.manager.domain.session.attempts import AttemptKey

# A slot's amount in the smallest unit: 16 PiB of memory or disk, a million of anything else.
MAX_SLOT_BYTES, MAX_OTHER = 2**54, 10**9
MAX_SLOTS = 64
# Byte counts are added up, and their sums have to fit in 64 bits.
MAX_BYTES = 2**53
MAX_MTU = 2**20
MAX_PORT = 65_535
MAX_NETWORKS = 64
_MAX_EPOCH = 2**31 - 1
# A node that is up for 300 years has something wrong with its clock.
_MAX_SECONDS = 1e10
# Times of an agent's clock within these years are shown as they are.
_YEARS = range(2000, 3000)

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SESSION = re.compile(_UUID)
_ATTEMPT = re.compile(rf"({_UUID})\.([1-9][0-9]{{0,9}})")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,32}")


class InvalidReportError(Exception):
    """A value that no sound agent sends: `reason` as an UPPER_SNAKE word, the text says what."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def text(value: str, longest: int) -> str:
    """Returns the text with spaces for what is not printable, cut to so many bytes of UTF-8."""
    # Cut before it is cleaned, so that a long text costs no more than a short one.
    cut = "".join(character if character.isprintable() else " " for character in value[:longest])
    return cut.encode(errors="replace")[:longest].decode(errors="ignore").strip()


def word(value: str, what: str) -> str:
    """Returns a word of at most 32 letters, digits, `_`, `.` and `-`, or nothing."""
    if value and not _WORD.fullmatch(value):
        raise InvalidReportError(AgentConditionReason.BAD_WORD, f"{what} is no word: {quoted(value)}")
    return value


def quoted(value: str) -> str:
    """Returns the text as a message may hold it."""
    return repr(text(value, 64))


def attempt_key(value: str) -> AttemptKey | None:
    """Returns kernel and epoch of an attempt's id; None when it is the id of no attempt."""
    match = _ATTEMPT.fullmatch(value)
    if match is None or int(match[2]) > _MAX_EPOCH:
        return None
    return uuid.UUID(match[1]), int(match[2])


def session_ids(values: Sequence[str], most: int) -> frozenset[uuid.UUID]:
    """Returns the ids of sessions, of which there may be so many."""
    bounded(values, most, "networks")
    return frozenset(map(session_id, values))


def session_id(value: str) -> uuid.UUID:
    """Returns the id of a session."""
    if not _SESSION.fullmatch(value):
        raise InvalidReportError(AgentConditionReason.BAD_ID, f"no session is called {quoted(value)}")
    return uuid.UUID(value)


def bounded(values: Sequence[object], most: int, what: str) -> None:
    """Raises InvalidReportError when there are more values than `most`."""
    if len(values) > most:
        raise InvalidReportError(AgentConditionReason.TOO_MANY, f"{len(values)} {what}, {most} are allowed")


def capacity(values: Mapping[str, int]) -> dict[str, int]:
    """Returns what a node has, by slot in the smallest unit. One that says nothing of its disk, as agents do that are
    older than this slot or run no kernels in earnest, bounds nothing there, and takes whatever is asked for.
    """
    return {**({DISK: MAX_AMOUNT} if values else {}), **amounts(values)}


def amounts(values: Mapping[str, int]) -> dict[str, int]:
    """Returns amounts by slot in the smallest unit."""
    if len(values) > MAX_SLOTS:
        raise InvalidReportError(AgentConditionReason.TOO_MANY, f"{len(values)} slots, {MAX_SLOTS} are allowed")
    for slot, amount in values.items():
        try:
            check_slot(slot)
        except AmountError as error:
            raise InvalidReportError(AgentConditionReason.BAD_CAPACITY, f"{quoted(slot)}: {error}") from None
        if not 0 <= amount <= (MAX_SLOT_BYTES if slot in BYTE_SLOTS else MAX_OTHER):
            raise InvalidReportError(AgentConditionReason.BAD_CAPACITY, f"no node has {amount} of {slot}")
    return dict(values)


def underlay(value: str) -> str:
    """Returns the address that other nodes send to, in its canonical form, or nothing."""
    if not value:
        return ""
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise InvalidReportError(
            AgentConditionReason.BAD_ADDRESS, f"the underlay address is no address: {quoted(value)}"
        ) from None
    broadcast = address.version == 4 and address.packed == b"\xff" * 4  # noqa: PLR2004  # IPv4
    if address.is_unspecified or address.is_multicast or broadcast or "%" in value:
        raise InvalidReportError(AgentConditionReason.BAD_ADDRESS, f"no node has the underlay address {address}")
    return str(address)


def ipv4_networks(values: Sequence[str]) -> tuple[str, ...]:
    """Returns IPv4 networks in their canonical form, each once."""
    bounded(values, MAX_NETWORKS, "reachable networks")
    try:
        return tuple(dict.fromkeys(str(ipaddress.IPv4Network(value)) for value in values))
    except ValueError as error:
        raise InvalidReportError(
            AgentConditionReason.BAD_ADDRESS, f"a reachable network is none: {quoted(str(error))}"
        ) from None


def mtu(value: int) -> int:
    """Returns the MTU of a link; 0 is not known."""
    if not 0 <= value <= MAX_MTU:
        raise InvalidReportError(AgentConditionReason.BAD_ADDRESS, f"no link has an MTU of {value}")
    return value


def byte_count(value: int) -> int:
    """Returns a number of bytes, within what can be stored and added up."""
    return min(max(value, 0), MAX_BYTES)


def seconds(value: Duration) -> float:
    """Returns a length of time that is not negative."""
    length = times.seconds(value)
    if not (math.isfinite(length) and 0 <= length <= _MAX_SECONDS):
        raise InvalidReportError(AgentConditionReason.BAD_TIME, f"a clock says {length} s")
    return length


def nanoseconds(value: Duration) -> int:
    """Returns a length of time that is only shown, within what can be stored."""
    return min(max(value.seconds * 1_000_000_000 + value.nanos, 0), MAX_BYTES)


def moment(value: Timestamp) -> dt.datetime | None:
    """Returns the time, or None for one that no clock shows."""
    try:
        found = value.ToDatetime(dt.UTC)
    except (ValueError, OverflowError):
        return None
    return found if found.year in _YEARS else None
