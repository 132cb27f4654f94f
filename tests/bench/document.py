"""The table of figures in docs/performance.md."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.goals import Figure, goal_of

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- figures begin -->", "<!-- figures end -->"
_HEADING = "| figure | value | smallest to largest | unit | peer | ratio | goal | met | measured |"
_ROW = re.compile(r"\| `([^`]+)` \|.*")


def machine() -> str:
    """The machine in words: its processor, memory, kernel and Python, and nothing that names it."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    gib = int(memory.split()[1]) / (1 << 20)
    return (
        f"{os.cpu_count()} processors ({model}), {gib:.0f} GiB of memory, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}; load over 1, 5 and 15 minutes at the end: "
        f"{', '.join(f'{load:.1f}' for load in os.getloadavg())}"
    )


def row(figure: Figure, day: str) -> str:
    """A figure as a line of the table."""
    goal = goal_of(figure.name)
    spread = "" if figure.spread is None else f"{figure.spread[0]:.4g} to {figure.spread[1]:.4g}"
    return " | ".join(
        (
            f"| `{figure.name}`",
            f"{figure.value:.4g}",
            spread,
            figure.unit,
            "" if figure.peer is None else f"{figure.peer:.4g}",
            "" if figure.ratio is None else f"{figure.ratio:.4g}",
            "" if goal is None else goal.words,
            "" if goal is None else ("yes" if goal.met(figure) else "**no**"),
            f"{day} |",
        )
    )


def table(figures: Iterable[Figure], before: str, day: str, place: str) -> str:
    """The table with these figures in place of those of the same names; the rest is as it was `before`."""
    rows = {found[1]: line for line in before.splitlines() if (found := _ROW.fullmatch(line))}
    rows |= {figure.name: row(figure, day) for figure in figures}
    columns = _HEADING.count("|") - 1
    lines = [f"Last run on: {place}.", "", _HEADING, "|" + " --- |" * columns]
    return "\n".join([*lines, *(rows[name] for name in sorted(rows))])


def write(figures: Iterable[Figure]) -> None:
    """Brings the document up to date."""
    head, _, rest = DOCUMENT.read_text().partition(BEGIN)
    before, _, tail = rest.partition(END)
    day = dt.datetime.now(dt.UTC).date().isoformat()
    DOCUMENT.write_text(f"{head}{BEGIN}\n{table(figures, before, day, machine())}\n{END}{tail}")
