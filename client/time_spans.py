"""Lengths of time as people write them: `90`, `30s`, `1.5m`, `2h`, `1h30m`, `1d`. Pure."""

from __future__ import annotations

import re

from google.protobuf.duration_pb2 import Duration

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_SECONDS = 315_576_000_000
EXAMPLES = "30s, 5m, 2h"
"""What an error shows as examples."""


def parse_span(text: str) -> float | None:
    """Returns the seconds of a length of time, a number alone being seconds; None for anything else."""
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    else:
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            return None
        units = [_SECONDS[unit] for _, unit in parts]
        # From the largest to the smallest, each once.
        if units != sorted(set(units), reverse=True):
            return None
        seconds = sum(float(number) * unit for (number, _), unit in zip(parts, units, strict=True))
    return seconds if seconds <= _MAX_SECONDS else None


def as_duration(seconds: float) -> Duration:
    """Returns seconds as the contract has them."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
