"""Checks of fields: every one that is wrong is named by its path, all at once."""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
import uuid
from typing import TYPE_CHECKING

from retinue.manager.domain.errors import InvalidRequest, Violation
from retinue.rpc import times
from retinue.rpc.core.names import NAME_RULE, is_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.field_mask_pb2 import FieldMask
    from google.protobuf.timestamp_pb2 import Timestamp

_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_ONE_SECOND = dt.timedelta(seconds=1)
_MAX_PORT = 65535


class Violations:
    """Collects what is wrong with a request; every check returns a value that is right or stands in for a wrong one."""

    def __init__(self) -> None:
        self._found: list[Violation] = []

    def add(self, path: str, description: str) -> None:
        """Adds a field that is wrong."""
        self._found.append((path, description))

    @property
    def count(self) -> int:
        """The number of violations so far."""
        return len(self._found)

    def raise_any(self) -> None:
        """Raises InvalidRequest when anything is wrong."""
        if self._found:
            raise InvalidRequest(self._found)

    def name(self, path: str, value: str) -> str:
        """Reads a name: 1-63 characters a-z, 0-9 and -, with no dash first or last."""
        if not is_name(value):
            self.add(path, f"must be {NAME_RULE}")
        return value

    def text(self, path: str, value: str, longest: int) -> str:
        """Printable text of a bounded length."""
        if len(value) > longest or not value.isprintable():
            self.add(path, f"must be at most {longest} printable characters")
        return value

    def request_id(self, value: str) -> str:
        """Reads a UUID, or empty."""
        if value and parse_uuid(value) is None:
            self.add("request_id", "must be a UUID")
        return value

    def uuid(self, path: str, value: str) -> uuid.UUID:
        """Reads a UUID."""
        parsed = parse_uuid(value)
        if parsed is None:
            self.add(path, "must be a UUID")
        return parsed or uuid.UUID(int=0)

    def enum(self, path: str, value: int, descriptor: EnumDescriptor, *, unspecified: bool = False) -> int:
        """Reads a known value of an enum; 0 only with `unspecified`."""
        if value not in descriptor.values_by_number or (value == 0 and not unspecified):
            known = ", ".join(item.name for item in descriptor.values if item.number or unspecified)
            self.add(path, f"must be one of {known}")
        return value

    def one_of(self, path: str, value: str, known: Collection[str]) -> str:
        """One of these words."""
        if value not in known:
            self.add(path, f"must be one of {', '.join(sorted(known))}")
        return value

    def integer(self, path: str, value: int, lowest: int, highest: int) -> int:
        """Reads an integer within bounds."""
        if not lowest <= value <= highest:
            self.add(path, f"must be from {lowest} to {highest}")
        return value

    def duration(self, path: str, value: Duration, lowest: dt.timedelta, highest: dt.timedelta) -> dt.timedelta:
        """Reads a duration within bounds, to the microsecond."""
        if not times.is_valid(value):
            self.add(path, "is not a valid duration")
            return lowest
        parsed = value.ToTimedelta()
        if not lowest <= parsed <= highest:
            self.add(path, f"must be from {_seconds(lowest)} to {_seconds(highest)}")
            return lowest
        return parsed

    def timestamp(self, path: str, value: Timestamp) -> dt.datetime | None:
        """Reads a time, to the microsecond; None for one that is wrong."""
        try:
            return value.ToDatetime(dt.UTC)
        except (ValueError, OverflowError):
            self.add(path, "is not a valid time")
            return None

    def mapping(self, path: str, value: Mapping[str, object], most: int) -> None:
        """Reads a map with at most so many entries."""
        if len(value) > most:
            self.add(path, f"must be at most {most} entries")

    def mask(self, path: str, value: FieldMask, known: Collection[str]) -> Sequence[str]:
        """Reads the paths of a field mask, each of which must be known; once each."""
        paths = list(dict.fromkeys(value.paths))
        if unknown := [item for item in paths if item not in known]:
            self.add(path, f"unknown path {unknown[0][:64]!r}; known are {', '.join(sorted(known))}")
        return [item for item in paths if item in known]

    def address(self, path: str, value: str) -> str:
        """`host:port` that can be dialled; an IPv6 host is in brackets."""
        host, colon, port = value.rpartition(":")
        if (
            not colon
            or not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= _MAX_PORT)
            or not _dialable(host)
        ):
            self.add(path, "must be host:port, with a host that can be dialled")
        return value


def wrong_request_id(value: str) -> list[Violation]:
    """Returns what is wrong with a `request_id`, which is a UUID or empty."""
    return [("request_id", "must be a UUID")] if value and parse_uuid(value) is None else []


def parse_uuid(value: str) -> uuid.UUID | None:
    """Returns the UUID that a text is in the usual form of 36 characters; None when it is not."""
    try:
        parsed = uuid.UUID(value)
    except ValueError:
        return None
    return parsed if str(parsed) == value.lower() else None


def _dialable(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return _HOST.fullmatch(host) is not None and not host.replace(".", "").isdigit()
    # Without brackets the port of an IPv6 address is ambiguous.
    bracketed = host.startswith("[") == (address.version == 6)  # noqa: PLR2004  # of the protocol
    return bracketed and not (address.is_unspecified or address.is_multicast)


def _seconds(value: dt.timedelta) -> str:
    return f"{value // _ONE_SECOND} s"
