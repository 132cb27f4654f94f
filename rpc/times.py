"""Points in time, as messages."""

from __future__ import annotations

import datetime as dt

from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(value: dt.datetime | None) -> Timestamp | None:
    """Returns a time with a time zone as a message; None stays unset."""
    if value is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(value)
    return stamp
