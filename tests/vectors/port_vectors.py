"""Vectors about the numbers of published ports on a node (backendai.json): the lowest free one is given,
and one that was given up rests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from retinue.agent.network.core import publications
from retinue.agent.network.core.publications import Publications
from retinue.agent.network.errors import PortsExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable

Vector = dict[str, Any]

_STEP = re.compile(r"(acquire|release)(?: (\d+))?(?: at \+(\d+(?:\.\d+)?)s)?")


def run(vector: Vector) -> None:
    """Times are seconds after the last release. A release without a number is that of the port that was given last."""
    given = vector["input"]
    first, last = given["range"]
    with (
        patch.object(publications, "NUMBERS", range(first, last + 1)),
        patch.object(publications, "REST", float(given.get("cooldown_sec", 0))),
    ):
        assert results(given["ops"]) == vector["expected"]["results"]


def results(steps: list[str]) -> list[object]:
    """What each step gives: a number, `released` or `exhausted`."""
    given, now, released = Publications(), 0.0, 0.0
    found: list[object] = []
    for number, step in enumerate(steps):
        parsed = _STEP.fullmatch(step)
        assert parsed is not None, f"no step: {step!r}"
        what, port, after = parsed.groups()
        now = now if after is None else released + float(after)
        if what == "acquire":
            try:
                given = given.given(f"a{number}.1", 8000, now, min, closed=False)
                found.append(given.by_attempt[f"a{number}.1"].number)
            except PortsExhaustedError:
                found.append("exhausted")
        else:
            attempts = [key for key, item in given.by_attempt.items() if port is None or item.number == int(port)]
            given, released = given.without(attempts[-1:], now), now
            found.append("released")
    return found


RUNNERS: dict[str, Callable[[Vector], None]] = {"host_port_pool": run}
