"""Expressions of cron, as crontabs, Kubernetes and Quartz write them."""

from __future__ import annotations

import re

import pytest

from retinue.manager.domain.endpoints.schedules import parse_cron


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 9 * * MON-FRI", "0 9 * * 1-5"),
        ("0 9 * * fri-sun", "0 9 * * 5-7"),
        ("0 9 * * Sun,Wed", "0 9 * * 0,3"),
        ("0 0 1 JAN,jul *", "0 0 1 1,7 *"),
        ("0 0 1 jan-dec/3 *", "0 0 1 1-12/3 *"),
        ("0 12 ? * MON", "0 12 * * 1"),
        ("0 12 1 * ?", "0 12 1 * *"),
        ("*/15  8-18\t* * 7", "0,15,30,45 8-18 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_two_ways_to_write_one_time(text: str, same: str) -> None:
    assert parse_cron(text) == parse_cron(same)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("0 0 12 * * ?", "five fields"),
        ("@reboot", "five fields"),
        ("@every 5m", "five fields"),
        ("0 0 L * *", "day of month: 'L'"),
        ("0 0 15W * *", "day of month: '15W'"),
        ("0 0 * * 5#2", "day of week: '5#2'"),
        ("0 0 * * MONDAY", "day of week: 'MONDAY'"),
        ("0 0 * MON *", "month: 'MON'"),
        ("JAN 0 * * *", "minute: 'JAN'"),
        ("60 0 * * *", "minute: '60' is not within 0-59"),
        ("0 24 * * *", "hour: '24' is not within 0-23"),
        ("0 0 0 * *", "day of month: '0' is not within 1-31"),
        ("0 0 * 13 *", "month: '13' is not within 1-12"),
        ("0 0 * * 8", "day of week: '8' is not within 0-7"),
        ("5-1 0 * * *", "minute: '5-1' is not within 0-59"),
        ("*/0 0 * * *", "minute: '*/0' is not within 0-59"),
        ("-5 0 * * *", "minute: '-5'"),
    ],
)
def test_what_is_refused_says_which_field(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_cron(text)
