"""Output of programs on a terminal: text and colours, and nothing else that a terminal obeys.

A program's output may be a stranger's. Sequences of control characters set the title of a window, write to the
clipboard, or have a terminal type; so all but those that set colours (SGR) are shown as escapes.
What goes to a file or a pipe stays as it is.
"""

from __future__ import annotations

import codecs
import re
import sys

import click

from retinue.client.command.shell.printable import safe

raw_option = click.option(
    "--raw", is_flag=True, help="Print control sequences as they are; by default a terminal gets text and colours only."
)

_SGR = re.compile(r"\x1b\[[0-9;:]*m")
# A possible start of a colour sequence; at most so many characters are held back.
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")
# Lines, columns, and progress bars that write over their own line.
_KEPT = "\n\t\r"
_RESET = "\x1b[0m"


class TerminalText:
    """Text in portions, as it may be shown on a terminal."""

    def __init__(self) -> None:
        """Keeps nothing yet."""
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._kept = ""
        self._coloured = False

    def take(self, data: bytes) -> str:
        """Returns what can be shown after a portion of bytes; what may be the start of a colour is kept."""
        return self.take_text(self._decode(data))

    def take_text(self, text: str) -> str:
        """Does the same as `take`, for text."""
        text, self._kept = self._kept + text, ""
        if (unfinished := _UNFINISHED.search(text)) is not None:
            text, self._kept = text[: unfinished.start()], unfinished[0]
        return self._shown(text)

    def rest(self) -> str:
        """Returns what was kept, and the end of colours that were begun."""
        text, self._kept = self._kept + self._decode(b"", True), ""
        return self._shown(text) + (_RESET if self._coloured else "")

    def _shown(self, text: str) -> str:
        parts: list[str] = []
        position = 0
        for colour in _SGR.finditer(text):
            parts += (_escaped(text[position : colour.start()]), colour[0])
            self._coloured = True
            position = colour.end()
        return "".join((*parts, _escaped(text[position:])))


def _escaped(text: str) -> str:
    return "".join(character if character in _KEPT else safe(character) for character in text)


class Printer:
    """Writes output of programs to standard output, or with `errors` to standard error: as it is, or on a terminal as
    text, unless `raw`.
    """

    def __init__(self, *, raw: bool, errors: bool = False) -> None:
        """Writes nothing yet."""
        self._to = sys.stderr if errors else sys.stdout
        self._text = TerminalText() if self._to.isatty() and not raw else None

    def write(self, data: bytes) -> None:
        """Writes a portion. Blocks."""
        self._put(data if self._text is None else self._text.take(data).encode(errors="backslashreplace"))

    def finish(self) -> None:
        """Writes what a portion may have left unfinished. Blocks."""
        if self._text is not None:
            self._put(self._text.rest().encode(errors="backslashreplace"))

    def _put(self, data: bytes) -> None:
        self._to.buffer.write(data)
        self._to.buffer.flush()
