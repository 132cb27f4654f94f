"""Points in time and lengths of time, as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

if TYPE_CHECKING:
    import datetime as dt


def timestamp(value: dt.datetime | None) -> Timestamp | None:
    """Returns a time with a time zone as a message; None stays unset."""
    if value is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(value)
    return stamp


def duration(seconds: float) -> Duration:
    """Returns a length of time as a message, to the nanosecond."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def milliseconds(value: int) -> Duration:
    """Returns a length of time as a message."""
    message = Duration()
    message.FromMilliseconds(value)
    return message


def seconds(message: Duration) -> float:
    """Returns a length of time in seconds, whatever numbers the message has."""
    return float(message.seconds) + float(message.nanos) / 1e9


def is_valid(message: Duration) -> bool:
    """Returns whether a message is a length of time: nanoseconds within a second, of the same sign as the seconds."""
    try:
        message.ToJsonString()
    except ValueError:
        return False
    return True
