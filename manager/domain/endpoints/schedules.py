"""Says which floor schedules put under the number of replicas: cron(5) expressions in a time zone,
each with a duration. Pure.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Minute, hour, day of month, month, day of week (0 and 7: Sunday).
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_MONTHS = {
    name: str(number)
    for number, name in enumerate("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(), 1)  # noqa: SIM905  # a row
}
_WEEKDAYS = {name: str(number) for number, name in enumerate("SUN MON TUE WED THU FRI SAT".split())}  # noqa: SIM905
_NAMES: tuple[Mapping[str, str], ...] = ({}, {}, {}, _MONTHS, _WEEKDAYS)
_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WORD = re.compile(r"[A-Z]+")
_PART = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?")
_SUNDAY = 7
# No schedule holds for longer.
_LONGEST_DAYS = 8


@dataclass(frozen=True, slots=True)
class Schedule:
    """At least so many replicas for `duration` milliseconds from each time that `cron` names."""

    cron: str
    duration: int
    replicas: int
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Cron:
    """The values of each field that match; `either` day suffices when both are restricted."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def has_day(self, day: dt.date) -> bool:
        """Returns whether a day matches."""
        in_month, in_week = day.day in self.days, day.isoweekday() % _SUNDAY in self.weekdays
        return day.month in self.months and ((in_month or in_week) if self.either else (in_month and in_week))


@functools.lru_cache(maxsize=1024)
def parse_cron(text: str) -> Cron:
    """Returns what an expression says. Raises ValueError with what is wrong."""
    parts = _SHORTHANDS.get(text.strip().lower(), text).split()
    if len(parts) != len(_BOUNDS):
        raise ValueError(
            "must have five fields, minute, hour, day of month, month and day of week, as `0 9 * * MON-FRI`, "
            f"or be one of {', '.join(_SHORTHANDS)}"
        )
    parts = [_numbered(part, known) for part, known in zip(parts, _NAMES, strict=True)]
    values = [_values(part, low, high, name) for part, (low, high), name in zip(parts, _BOUNDS, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = values
    either = parts[2] != "*" and parts[4] != "*"
    weekly = frozenset(value % _SUNDAY for value in weekdays)
    return Cron(tuple(sorted(minutes)), tuple(sorted(hours)), frozenset(days), frozenset(months), weekly, either)


def parse_zone(name: str) -> ZoneInfo:
    """Returns a time zone. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:
        raise ValueError("is not the name of a time zone") from error


def scheduled_floor(schedules: Iterable[Schedule], now: dt.datetime) -> int:
    """Returns the highest floor that holds now; 0 for none. A schedule that cannot be read holds nothing."""
    return max((item.replicas for item in schedules if _holds(item, now)), default=0)


def _holds(schedule: Schedule, now: dt.datetime) -> bool:
    try:
        cron, zone = parse_cron(schedule.cron), parse_zone(schedule.time_zone)
    except ValueError:
        return False
    begin = _last_start(cron, zone, now)
    return begin is not None and now - begin < dt.timedelta(milliseconds=schedule.duration)


def _last_start(cron: Cron, zone: ZoneInfo, now: dt.datetime) -> dt.datetime | None:
    """Returns the newest time that an expression names up to now, within the last days."""
    today = now.astimezone(zone).date()
    for back in range(_LONGEST_DAYS + 1):
        day = today - dt.timedelta(days=back)
        if not cron.has_day(day):
            continue
        for hour in reversed(cron.hours):
            for minute in reversed(cron.minutes):
                begin = dt.datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                # By the time that passes, not by the wall clock: an hour may be there twice.
                if begin.astimezone(dt.UTC) <= now:
                    return begin.astimezone(dt.UTC)
    return None


def _numbered(text: str, names: Mapping[str, str]) -> str:
    """Returns a field with numbers in place of names; `?`, which Quartz has for any day, is `*`."""
    if text == "?":
        return "*"
    # A range ends with the last day of the week.
    numbered = text.upper().replace("-SUN", f"-{_SUNDAY}") if names is _WEEKDAYS else text.upper()
    return _WORD.sub(lambda word: names.get(word[0], word[0]), numbered)


def _values(text: str, low: int, high: int, name: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{name}: {part[:16]!r} is not *, a number, a range or one of these with /STEP")
        first, last, step = match.groups()
        begin = low if first is None else int(first)
        end = high if first is None or (last is None and step is not None) else int(last or first)
        if not low <= begin <= end <= high or step == "0":
            raise ValueError(f"{name}: {part[:16]!r} is not within {low}-{high}")
        found.update(range(begin, end + 1, int(step or 1)))
    return found
