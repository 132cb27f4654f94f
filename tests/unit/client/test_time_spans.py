"""Lengths of time and moments, as users of other systems write them."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from retinue.client.time_spans import as_duration, parse_moment, parse_span

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("30s", 30),
        # Go, Docker, Kubernetes.
        ("1h15m30.918s", 4530.918),
        ("1.5h", 5400),
        ("300ms", 0.3),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("5ns", 5e-9),
        # systemd.
        ("5min", 300),
        ("2min 30sec", 150),
        ("1h 30min", 5400),
        ("3 days 12 hours", 302_400),
        ("1w", 604_800),
        ("2 weeks", 1_209_600),
        ("1hr", 3600),
        (" 5m ", 300),
        # ISO 8601.
        ("PT30M", 1800),
        ("PT1H30M", 5400),
        ("P1DT2H", 93_600),
        ("P1W", 604_800),
        ("PT0.5S", 0.5),
        ("PT0S", 0),
    ],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert parse_span(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "-5m", "+5m", "1:30", "01:30:00", "1-02:00:00", "5 fortnights", "1M", "1month", "1y", "5x"),
        *("30m1h", "1h2h", "1h-30m", "h", "m5", "1,5h", "1e3", "inf", "nan", "٣s", "5m!", "1_000"),
        *("P", "PT", "P1DT", "P1M", "P1Y", "PT1X", "pt5m", "P-1D", "10000000000d", "9" * 400),
    ],
)
def test_what_is_no_length_of_time(text: str) -> None:
    assert parse_span(text) is None


def test_a_nanosecond_is_kept() -> None:
    seconds = parse_span("1h5ns")
    assert seconds is not None
    assert as_duration(seconds).nanos == 5


@pytest.mark.parametrize(
    ("text", "direction", "moment"),
    [
        ("now", 1, NOW),
        ("30m", 1, NOW + dt.timedelta(minutes=30)),
        ("+30m", 1, NOW + dt.timedelta(minutes=30)),
        ("30m", -1, NOW - dt.timedelta(minutes=30)),
        ("-1h", -1, NOW - dt.timedelta(hours=1)),
        ("PT30M", 1, NOW + dt.timedelta(minutes=30)),
        ("2026-01-31T12:00:00Z", 1, NOW),
        ("2026-01-31T13:00:00+01:00", 1, NOW),
        ("2026-01-31T13:00:00+0100", 1, NOW),
        ("2026-01-31 13:00:00 +0100", 1, NOW),
        ("2026-01-31 12:00:00 UTC", 1, NOW),
        ("2026-01-31T12:00:00.000000000Z", 1, NOW),
        ("20260131T120000Z", 1, NOW),
        ("1769860800", -1, NOW),
        ("1769860800.0", -1, NOW),
        ("@1769860800", 1, NOW),
    ],
)
def test_a_moment(text: str, direction: int, moment: dt.datetime) -> None:
    assert parse_moment(text, NOW, direction) == moment


def test_a_moment_without_a_zone_is_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    try:
        for text in ("2026-01-31T14:00", "2026-01-31 14:00:00"):
            assert parse_moment(text, NOW, 1) == NOW
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "soon", "teatime", "14:00", "31.01.2026", "01/31/26", "2026-13-01", "@", "@x", "@1e300", "-5m", "1M"]
)
def test_what_is_no_moment(text: str) -> None:
    assert parse_moment(text, NOW, 1) is None
