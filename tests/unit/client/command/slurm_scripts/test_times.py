"""Times as Slurm writes and reads them."""

from __future__ import annotations

import datetime as dt

import pytest

from retinue.client.command.slurm_scripts.times import long_span, moment_text, parse_limit, parse_moment, short_span

NOW = dt.datetime(2026, 3, 5, 14, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("1:30", 90),
        ("1:02:03", 3723),
        ("2-0", 172800),
        ("1-02:03", 93780),
        ("1-02:03:04", 93784),
        ("0", 0),
        ("unlimited", 0),
        ("INFINITE", 0),
        ("soon", None),
        ("1h", None),
        ("-5", None),
    ],
)
def test_limits(text: str, seconds: int | None) -> None:
    assert parse_limit(text) == seconds


@pytest.mark.parametrize(
    ("text", "future", "past"),
    [
        ("now", "2026-03-05T14:30:00", None),
        ("now+60", "2026-03-05T14:31:00", None),
        ("now+2hours", "2026-03-05T16:30:00", None),
        ("now-2days", "2026-03-03T14:30:00", None),
        ("16:00", "2026-03-05T16:00:00", None),
        ("4:05pm", "2026-03-05T16:05:00", None),
        ("12:10am", "2026-03-06T00:10:00", "2026-03-05T00:10:00"),
        ("10:00:01", "2026-03-06T10:00:01", "2026-03-05T10:00:01"),
        ("noon", "2026-03-06T12:00:00", "2026-03-05T12:00:00"),
        ("teatime", "2026-03-05T16:00:00", None),
        ("today", "2026-03-05T00:00:00", None),
        ("tomorrow", "2026-03-06T00:00:00", None),
        ("2026-01-31", "2026-01-31T00:00:00", None),
        ("2026-01-31T12:00", "2026-01-31T12:00:00", None),
        ("2026-03-03T15:00", "2026-03-03T15:00:00", None),
        ("01/31", "2027-01-31T00:00:00", "2026-01-31T00:00:00"),
        ("04/01/27-08:15", "2027-04-01T08:15:00", None),
        ("040127", "2027-04-01T00:00:00", None),
    ],
)
def test_moments(text: str, future: str, past: str | None) -> None:
    for direction, expected in ((True, future), (False, past or future)):
        found = parse_moment(text, NOW, future=direction)
        assert found is not None
        assert found.replace(tzinfo=None).isoformat() == expected, direction


@pytest.mark.parametrize("text", ["", "soon", "25:00", "10:61", "13/40", "2026-02-30", "now+99999999999days", "2026-"])
def test_what_is_no_moment(text: str) -> None:
    assert parse_moment(text, NOW, future=True) is None


def test_spans_as_squeue_and_sacct_print_them() -> None:
    assert [short_span(seconds) for seconds in (5, 65, 3723, 200000)] == ["0:05", "1:05", "1:02:03", "2-07:33:20"]
    assert [long_span(seconds) for seconds in (5, 3723, 200000)] == ["00:00:05", "01:02:03", "2-07:33:20"]
    assert moment_text(None, "Unknown") == "Unknown"
