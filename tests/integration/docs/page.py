"""Pages whose commands can be run: their fenced blocks, in order, with what they are to print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FENCE = re.compile(r"^```(?P<kind>[a-z]*)[ ]?(?P<words>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ANYTHING = "…"


@dataclass(frozen=True, slots=True)
class Step:
    """Commands, and lines that are to come in this order; others may come between them.
    `background`: it continues by itself.
    """

    place: str
    commands: str
    expected: tuple[str, ...]
    background: bool

    def missing(self, output: str) -> str | None:
        """The first expected line that does not come after those before it; None when all do."""
        lines = iter(output.splitlines())
        for wanted in self.expected:
            pattern = re.compile(r"\s*".join(map(_pattern, wanted.split())))
            if not any(pattern.fullmatch(line.strip()) for line in lines):
                return wanted
        return None


def _pattern(word: str) -> str:
    return ".*".join(re.escape(part) for part in word.split(ANYTHING))


def steps(page: Path) -> list[Step]:
    """What is to be typed on a page: blocks of `sh`, each with the block of `text` that follows.
    Raises ValueError on a `text` alone.
    """
    source = page.read_text()
    found: list[Step] = []
    open_step: tuple[str, str, bool] | None = None
    for fence in _FENCE.finditer(source):
        expected: tuple[str, ...] = ()
        if fence["kind"] == "text":
            if open_step is None:
                raise ValueError(f"{page.name}: an output that no command comes before: {fence['text']}")
            expected = tuple(line for line in fence["text"].splitlines() if line.strip())
        if open_step is not None:
            found.append(Step(open_step[0], open_step[1], expected, open_step[2]))
            open_step = None
        if fence["kind"] == "sh":
            line = source.count("\n", 0, fence.start()) + 2
            open_step = (f"{page.name}:{line}", fence["text"], "terminal" in fence["words"])
    if open_step is not None:
        found.append(Step(open_step[0], open_step[1], (), open_step[2]))
    return found
