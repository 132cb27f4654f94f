"""Lengths of time and moments as people write them. Pure.

A length is a number of seconds, as `90`, or has units, as `1h30m`, `1.5 hours` and `5min`, from the largest to the
smallest: what Docker, Kubernetes, Go and systemd take. ISO 8601 has them as `PT1H30M`. Units without a fixed length,
and `01:30`, which is minutes to some and hours to others, are refused.
"""

from __future__ import annotations

import datetime as dt
import re

from google.protobuf.duration_pb2 import Duration

from retinue.client.words import Span, seconds_of

_AMOUNT = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PART = re.compile(rf"({_AMOUNT})\s*([a-zµμ]+)\s*", re.ASCII)
_NUMBER = re.compile(_AMOUNT, re.ASCII)
_ISO = re.compile(
    rf"P(?:({_AMOUNT})W)?(?:({_AMOUNT})D)?(?:T(?:({_AMOUNT})H)?(?:({_AMOUNT})M)?(?:({_AMOUNT})S)?)?", re.ASCII
)
# In the order in which ISO 8601 has the first of them.
_UNITS = (
    (604_800.0, "w week weeks"),
    (86_400.0, "d day days"),
    (3600.0, "h hr hrs hour hours"),
    (60.0, "m min mins minute minutes"),
    (1.0, "s sec secs second seconds"),
    (1e-3, "ms msec millis"),
    (1e-6, "us µs μs usec micros"),
    (1e-9, "ns nsec nanos"),
)
_SECONDS = {name: seconds for seconds, names in _UNITS for name in names.split()}
_MAX_SECONDS = 315_576_000_000
_FIRST_UNIX_TIME = 1_000_000_000
EXAMPLES = "30s, 5m, 1h30m or 2d"
"""What an error shows as examples."""
MOMENT_EXAMPLES = "10m, or 2026-01-31T12:00:00Z"
"""What an error shows as examples of moments."""


def parse_span(text: str) -> float | None:
    """Returns the seconds of a length of time, a number alone being seconds; None for anything else."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    elif text.startswith("P"):
        found = _ISO.fullmatch(text)
        if found is None or not any(found.groups()) or text.endswith("T"):
            return None
        seconds = sum(float(amount or 0) * unit for amount, (unit, _) in zip(found.groups(), _UNITS, strict=False))
    else:
        parts = _PART.findall(text)
        if not parts or _PART.sub("", text) or any(name not in _SECONDS for _, name in parts):
            return None
        units = [_SECONDS[name] for _, name in parts]
        # From the largest to the smallest, each once.
        if units != sorted(set(units), reverse=True):
            return None
        seconds = sum(float(number) * unit for (number, _), unit in zip(parts, units, strict=True))
    return seconds if seconds <= _MAX_SECONDS else None


def parse_moment(text: str, now: dt.datetime, direction: int) -> dt.datetime | None:
    """Returns a moment with its zone: `now`, a length of time before `now` or with the direction 1 after it, or
    what `parse_time` takes; None for anything else.
    """
    if text.strip() == "now":
        return now
    seconds = parse_span(text.strip().removeprefix("-" if direction < 0 else "+"))
    if seconds is None or seconds >= _FIRST_UNIX_TIME:
        return parse_time(text)
    try:
        return now + direction * dt.timedelta(seconds=seconds)
    except OverflowError:
        return None


def parse_time(text: str) -> dt.datetime | None:
    """Returns a moment with its zone from ISO 8601, without a zone in that of this machine, or from the seconds since
    1970 that Docker takes; None for anything else.
    """
    text = text.strip()
    number = text.removeprefix("@")
    try:
        if _NUMBER.fullmatch(number):
            long_enough = number != text or float(number) >= _FIRST_UNIX_TIME
            return dt.datetime.fromtimestamp(float(number), dt.UTC) if long_enough else None
        parsed = dt.datetime.fromisoformat(_without_space_before_zone(text))
        return parsed if parsed.tzinfo is not None else parsed.astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _without_space_before_zone(text: str) -> str:
    """Returns a time as `date` and Git print it, `2026-01-31 12:00:00 +0100`, as ISO 8601 has it."""
    if text.endswith((" UTC", " GMT")):
        return f"{text[:-4]}Z"
    return re.sub(r"(?<=\d) (?=[+-]\d\d:?\d\d$)", "", text)


def as_duration(span: Span) -> Duration:
    """Returns a length of time as the contract has it."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds_of(span) * 1e9))
    return duration
