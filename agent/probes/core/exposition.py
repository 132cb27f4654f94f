"""Reads values out of a page of metrics in the Prometheus text format.
Whatever the page is, what can be read of it is returned. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_SAMPLES = 1_000
"""Samples of one metric; one that has more is left out: it costs more to read than it is worth."""
MAX_LINE = 4_096


def read_metrics(page: str, names: Collection[str]) -> dict[str, float]:
    """Returns the sum of the samples of each metric; one that has none, or a sample that is no finite number,
    is left out.
    """
    lines: dict[str, list[str]] = {name: [] for name in names if name}
    # Only lines that are asked for go through the parser: a page may be large, and is none of ours.
    for line in page.splitlines():
        name = line.partition("{")[0].split(None, 1)[0] if line[:1].isidentifier() or line[:1] == ":" else ""
        if (found := lines.get(name)) is not None and len(found) <= MAX_SAMPLES:
            found.append(line)
    values = {name: _sum(name, found) for name, found in lines.items() if 0 < len(found) <= MAX_SAMPLES}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _sum(name: str, lines: list[str]) -> float | None:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  # few agents ever need it

    if any(len(line) > MAX_LINE for line in lines):
        return None
    try:
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        return sum(float(sample.value) for family in families for sample in family.samples if sample.name == name)
    except Exception:  # noqa: BLE001  # the parser raises whatever a bad line leads to
        return None
