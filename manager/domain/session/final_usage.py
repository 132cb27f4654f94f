"""What an attempt had used at its end."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True, slots=True)
class FinalUsage:
    """What an attempt had used when its agent last measured it, at `time` by the agent's clock.

    Processor time is in nanoseconds, the rest in bytes; None was not counted.
    """

    time: dt.datetime | None
    cpu: int | None = None
    memory_peak: int | None = None
    read: int | None = None
    written: int | None = None


_FINAL_USAGE = TypeAdapter(FinalUsage)


def parse_final_usage(stored: object) -> FinalUsage | None:
    """Returns stored usage; None when there is none, or it cannot be read. Never raises."""
    try:
        return _FINAL_USAGE.validate_python(stored) if stored else None
    except ValidationError:
        return None
