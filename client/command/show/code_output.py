"""Shows the output of code, on a terminal and in files."""

from __future__ import annotations

import getpass
import itertools
import re
import sys
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.printable import safe
from retinue.client.command.show.terminal_text import TerminalText

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.types.v1 import code_pb2

SAVED = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/svg+xml": ".svg",
    "image/gif": ".gif",
    "application/pdf": ".pdf",
    "text/html": ".html",
}
"""Forms that a terminal does not show, by preference, and how files of them end."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Output:
    """Shows events of runs; files are numbered on from those that are there."""

    def __init__(self, directory: Path, *, raw: bool = False) -> None:
        """Creates nothing before something has to be saved; with `raw`, terminals get all that code prints."""
        self._directory = directory
        self._stdout = TerminalText() if sys.stdout.isatty() and not raw else None
        self._stderr = TerminalText() if sys.stderr.isatty() and not raw else None

    def show(self, event: code_pb2.CodeEvent) -> None:
        """Shows one event. Blocks."""
        match event.WhichOneof("event"):
            case "stdout":
                click.echo(_printed(self._stdout, event.stdout), nl=False)
            case "stderr":
                click.echo(_printed(self._stderr, event.stderr), nl=False, err=True)
            case "media":
                self._show_media(event.media)
            case "queued":
                click.echo(f"[waits for {event.queued.ahead} before it]", err=True)
            case "log":
                click.echo(f"[{safe(event.log.message)}]", err=True)
            case "finished" if event.finished.traceback:
                lines = "\n".join(event.finished.traceback)
                coloured = sys.stderr.isatty()
                # Only colours: a traceback may quote what other users wrote.
                parts = [_lines(part) for part in _COLOURS.split(lines)]
                colours = [*(_COLOURS.findall(lines) if coloured else []), ""]
                pairs = itertools.zip_longest(parts, colours, fillvalue="")
                click.echo("".join(part + colour for part, colour in pairs), err=True)
            case "finished" if event.finished.error_name:
                click.echo(safe(f"{event.finished.error_name}: {event.finished.error_value}"), err=True)

    def ask(self, request: code_pb2.CodeInputRequest) -> str | None:
        """Returns the user's answer; None without a terminal to ask. Blocks."""
        try:
            if request.password:
                return getpass.getpass(safe(request.prompt))
            return input(safe(request.prompt))
        except EOFError:
            return None

    def _show_media(self, media: code_pb2.CodeMedia) -> None:
        forms = {form.mime_type: form.data for form in media.forms}
        kind = next((kind for kind in SAVED if kind in forms), None)
        if "text/plain" in forms and (kind is None or kind == "text/html" or media.result):
            click.echo(_lines(forms["text/plain"].decode(errors="replace")))
        if kind is not None:
            click.echo(f"[saved {self._save(forms[kind], SAVED[kind])}]", err=True)
        elif "text/plain" not in forms:
            click.echo(f"[{', '.join(map(safe, forms))}]", err=True)

    def _save(self, data: bytes, suffix: str) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = self._directory / f"retinue-{number}{suffix}"
            try:
                with path.open("xb") as file:
                    file.write(data)
            except FileExistsError:
                continue
            return path
        raise AssertionError


def _printed(terminal: TerminalText | None, text: str) -> str:
    return text if terminal is None else terminal.take_text(text)


def _lines(text: str) -> str:
    """Returns text of several lines that cannot move the cursor."""
    return "\n".join(safe(line.replace("\t", "        ")) for line in text.split("\n"))
