"""Times as Slurm writes and reads them. Pure."""

from __future__ import annotations

import datetime as dt
import re

_DAY, _HOUR, _MINUTE = 86400, 3600, 60
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_FROM_NOW = re.compile(r"now(?:([+-])(\d+)(seconds?|minutes?|hours?|days?|weeks?)?)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*([ap]m)?", re.IGNORECASE)
_ISO = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ](.*))?")
_SLASHES = re.compile(r"(\d{1,2})[/.](\d{1,2})(?:[/.](\d{2}|\d{4}))?(?:-(.*))?")
_DIGITS = re.compile(r"(\d\d)(\d\d)(\d\d)?")
_NAMED = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_UNITS = {"s": 1, "m": _MINUTE, "h": _HOUR, "d": _DAY, "w": 7 * _DAY}
UNLIMITED = ("UNLIMITED", "INFINITE")
"""What stands for no time limit, in any case."""


def parse_limit(text: str) -> int | None:
    """Returns the seconds of a time limit: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`, 0 for none;
    None for anything else.
    """
    if text.upper() in UNLIMITED:
        return 0
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    days, parts = int(found[1] or 0), [int(part) for part in found.groups()[1:] if part is not None]
    with_hours = found[1] is not None or len(parts) == len("HMS")
    units = (_HOUR, _MINUTE, 1) if with_hours else (_MINUTE, 1)
    return days * _DAY + sum(part * unit for part, unit in zip(parts, units, strict=False))


def parse_moment(text: str, now: dt.datetime, *, future: bool) -> dt.datetime | None:
    """Returns a moment, in the zone of `now`: `now+2hours`, `16:00`, `noon`, `tomorrow`, `01/31`, `2026-01-31T12:00`;
    None for anything else. A time of the day, or a day without its year, is the next one with `future`, else the last.
    """
    text = text.strip().lower()
    if found := _FROM_NOW.fullmatch(text):
        seconds = int(found[2] or 0) * _UNITS[(found[3] or "s")[0]]
        return _shift(now, -seconds if found[1] == "-" else seconds)
    day, _, clock = text.partition("t") if _ISO.match(text) else (text, "", "")
    try:
        return _on_day(day, clock, now, future=future) or _at_time(text, now, future=future)
    except (ValueError, OverflowError):
        return None


def _on_day(text: str, clock: str, now: dt.datetime, *, future: bool) -> dt.datetime | None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("today", "tomorrow"):
        return _shift(midnight, _DAY if text == "tomorrow" else 0)
    if found := _ISO.fullmatch(text):
        year, month, day, clock = int(found[1]), int(found[2]), int(found[3]), clock or found[4] or ""
    elif found := _SLASHES.fullmatch(text):
        year, month, day, clock = _year(found[3], now), int(found[1]), int(found[2]), found[4] or ""
    elif found := _DIGITS.fullmatch(text):
        year, month, day = _year(found[3], now), int(found[1]), int(found[2])
    else:
        return None
    seconds = _seconds(clock) if clock else 0
    if seconds is None:
        return None
    moment = _shift(midnight.replace(year=year, month=month, day=day), seconds)
    if moment is not None and found.re is not _ISO and found[3] is None and future and moment < now:
        return moment.replace(year=year + 1)
    return moment


def _at_time(text: str, now: dt.datetime, *, future: bool) -> dt.datetime | None:
    seconds = _seconds(text)
    if seconds is None:
        return None
    moment = _shift(now.replace(hour=0, minute=0, second=0, microsecond=0), seconds)
    return _shift(moment, _DAY) if moment is not None and future and moment < now else moment


def _seconds(clock: str) -> int | None:
    """Returns the seconds from midnight to a time of the day."""
    if clock in _NAMED:
        return _NAMED[clock] * _HOUR
    found = _CLOCK.fullmatch(clock)
    if found is None:
        return None
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    if found[4]:
        hour = hour % 12 + (12 if found[4].lower() == "pm" else 0)
    dt.time(hour, minute, second)
    return hour * _HOUR + minute * _MINUTE + second


def _year(text: str | None, now: dt.datetime) -> int:
    return now.year if text is None else int(text) + (2000 if len(text) == len("YY") else 0)


def _shift(moment: dt.datetime, seconds: int) -> dt.datetime | None:
    try:
        return moment + dt.timedelta(seconds=seconds)
    except OverflowError:
        return None


def short_span(seconds: float) -> str:
    """Returns a length of time as squeue has it: `0:05`, `1:02:03`, `2-00:00:00`."""
    whole = max(0, int(seconds))
    return _clock(whole) if whole >= _HOUR else f"{whole // _MINUTE}:{whole % _MINUTE:02d}"


def long_span(seconds: float) -> str:
    """Returns a length of time as sacct has it: `00:00:05`, `2-00:00:00`."""
    whole = max(0, int(seconds))
    return _clock(whole) if whole >= _DAY else f"{whole // _HOUR:02d}:{whole // _MINUTE % 60:02d}:{whole % 60:02d}"


def _clock(whole: int) -> str:
    days, hours = divmod(whole // _HOUR, 24)
    rest = f"{whole // _MINUTE % 60:02d}:{whole % 60:02d}"
    return f"{days}-{hours:02d}:{rest}" if days else f"{hours}:{rest}"


def moment_text(seconds: float | None, unknown: str) -> str:
    """Returns a moment since 1970 in the zone of this machine, or `unknown` for none."""
    if seconds is None:
        return unknown
    return dt.datetime.fromtimestamp(seconds, dt.UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
