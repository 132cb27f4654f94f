"""Shows a session's progress to RUNNING and to its end as a live view on a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from retinue.client import enum_names
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.terminal import in_foreground
from retinue.client.command.shell.text import span
from retinue.client.command.show.live_view import LiveView
from retinue.client.command.show.session_texts import (
    SHOWN_KERNELS,
    changes,
    elapsed,
    kernel_counts,
    pull_text,
    reason_text,
    summary,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from retinue.manager.v1 import session_pb2

_STYLES = {"RUNNING": "green", "TERMINATED": "dim", "CANCELLED": "dim", "PENDING": "yellow"}


class LiveProgress:
    """A picture that is drawn again: the session, why it waits, and a line per kernel."""

    def __init__(self, console: Console) -> None:
        """The picture is drawn on `console`, a terminal."""
        self._console = console
        self._session: session_pb2.Session | None = None
        self._note = ""
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
        self._live: LiveView | None = None
        self._closed = False

    def show(self, session: session_pb2.Session) -> None:
        """Draws the session as it is now; one that has ended closes the view.
        After that only its states are printed.
        """
        before, self._session = self._session, session
        if self._closed:
            if before is None or before.state != session.state:
                self.say(changes(None, session)[0])
            return
        if enum_names.is_ended(session):
            self.close()
        elif not in_foreground():
            for line in changes(before, session):
                self.say(line)
        elif self._live is None:
            self._live = LiveView(
                console=self._console,
                get_renderable=self._render,
                transient=True,
                refresh_per_second=8,
                redirect_stdout=False,
            )
            self._live.start()

    def note(self, text: str) -> None:
        """Draws the text under the session's state."""
        self._note = text

    def say(self, text: str) -> None:
        """Prints a line above the picture."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Removes the live view and leaves one line."""
        if self._closed:
            return
        self._closed = True
        if self._live is not None:
            self._live.stop()
        if self._session is not None:
            self.say(summary(self._session, self._elapsed()))

    def _render(self) -> RenderableType:
        session = self._session
        if session is None:
            return self._spinner
        state = enum_names.state_of(session)
        title = Text.assemble(
            (safe(session.spec.name), "bold"), "  ", (state, _STYLES.get(state, "cyan")), f"  {span(self._elapsed())}"
        )
        heading = Table.grid(padding=(0, 1))
        heading.add_row(self._spinner, title)
        parts: list[RenderableType] = [heading]
        parts += [Text(f"  {line}", style="dim") for line in (reason_text(session), self._note) if line]
        kernels = Table.grid(padding=(0, 2))
        if len(session.kernels) <= SHOWN_KERNELS:
            for kernel in session.kernels:
                kernel_state = enum_names.name_of(enum_names.KERNEL_STATE, kernel.state)
                where = safe(kernel.agent)
                style = _STYLES.get(kernel_state, "cyan")
                location = safe(kernel.address) or pull_text(kernel)
                kernels.add_row("", safe(kernel.hostname), Text(kernel_state, style), where, location)
        else:
            kernels.add_row("", kernel_counts(session))
        return Group(*parts, kernels)

    def _elapsed(self) -> float:
        return 0.0 if self._session is None else elapsed(self._session, time.time())
