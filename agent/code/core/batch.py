"""The commands of a batch run. Pure."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from retinue.agent.code.core.events import Batch, Phase, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

USUAL = "*"
NOT_RUN = 127
"""Exit code of what was not run, because it is not there or what it needs failed."""
_BUILDS: Mapping[str, str] = {
    "c": "cc -o main *.c -lm",
    "c++": "c++ -o main *.cpp",
    "go": "go build -o main .",
    "rust": "cargo build --release",
}
_PROGRAMS: Mapping[str, str] = {
    "python": "python3 main.py",
    "python3": "python3 main.py",
    "bash": "bash main.sh",
    "javascript": "node main.js",
    "r": "Rscript main.R",
    "rust": "cargo run --release",
}


def steps(batch: Batch, language: str) -> list[tuple[Phase, str]]:
    """Returns the steps to run, as phases and texts for a shell."""
    build, program = _BUILDS.get(language, ":"), _PROGRAMS.get(language, "./main")
    usual = {
        Phase.CLEAN: "if [ -f Makefile ]; then make clean; fi",
        Phase.BUILD: f"if [ -f Makefile ]; then make; else {build}; fi",
        Phase.EXECUTE: f"if [ -x ./main ]; then exec ./main; else {program}; fi",
    }
    wanted = (
        (Phase.CLEAN, batch.clean),
        (Phase.BUILD, batch.build),
        (Phase.EXECUTE, batch.execute),
    )
    return [(phase, usual[phase] if text == USUAL else text) for phase, text in wanted if text]


class Printer:
    """Makes events of what a command prints: text, whose characters may come in pieces."""

    def __init__(self) -> None:
        """Nothing was printed yet."""
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(2)]

    def events(self, data: bytes, *, errors: bool, final: bool = False) -> list[Text]:
        """Returns events for the text so far; with `final` no more follows,
        and a partial character becomes a replacement.
        """
        text = self._decoders[errors].decode(data, final)
        return [Text(text, errors)] if text else []

    def rest(self) -> list[Text]:
        """Returns the remaining events once the command has ended."""
        return [event for errors in (False, True) for event in self.events(b"", errors=errors, final=True)]
