"""Shows a session's progress to RUNNING and to its end, in lines; `live_progress` draws it on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from retinue.client.command.show.session_texts import brief_changes, changes

if TYPE_CHECKING:
    from rich.console import Console

    from retinue.manager.v1 import session_pb2


class Progress(Protocol):
    """Shows a session as it moves on."""

    def show(self, session: session_pb2.Session) -> None:
        """Takes in the session after an event."""

    def note(self, text: str) -> None:
        """Adds what is known besides, for instance the place in the queue; empty for nothing."""

    def say(self, text: str) -> None:
        """Prints a line that stays."""

    def close(self) -> None:
        """Ends the view; what it was showing collapses into one line. Idempotent."""


def open_progress(console: Console) -> Progress:
    """Returns a live view if the console is a terminal, else a line for each change."""
    return _live_progress(console) or PlainProgress(console)


def open_brief_progress(console: Console, *, quiet: bool = False) -> Progress:
    """Returns a live view if the console is a terminal, else lines for the start, the end, and what is wrong;
    `quiet` leaves what is wrong, on a terminal too.
    """
    return (None if quiet else _live_progress(console)) or BriefProgress(console, quiet=quiet)


def _live_progress(console: Console) -> Progress | None:
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    from retinue.client.command.show.live_progress import LiveProgress  # noqa: PLC0415  # lists and pipes need none of it

    return LiveProgress(console)


class PlainProgress:
    """One line per change."""

    def __init__(self, console: Console) -> None:
        """Lines go to `console`."""
        self._console = console
        self._last: session_pb2.Session | None = None

    def show(self, session: session_pb2.Session) -> None:
        """Prints what changed."""
        for line in changes(self._last, session):
            self.say(line)
        self._last = session

    def note(self, text: str) -> None:
        """Does nothing: a note changes all the time, and is not shown."""

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Does nothing: there is nothing to end."""


class BriefProgress(PlainProgress):
    """One line when the session starts, one when it ends, and lines for what is wrong."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        """Lines go to `console`; `quiet` leaves out start and end of a session whose command ended."""
        super().__init__(console)
        self._quiet = quiet

    def show(self, session: session_pb2.Session) -> None:
        """Prints what is worth a line."""
        for line in brief_changes(self._last, session, quiet=self._quiet):
            self.say(line)
        self._last = session
