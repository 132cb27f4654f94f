"""Shows and checks the steps of the demonstration: headings, sessions as they move,
statements that are true or end it.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from rich.console import Console

from retinue.client import enum_names
from retinue.client.command.shell.printable import safe
from retinue.client.command.show.progress import open_progress
from retinue.client.command.show.session_texts import outcome
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from retinue.client.aio import Session


class DemoError(Exception):
    """Something is not as it must be; the text says what."""


class Stage:
    """Prints to one console; on a terminal sessions are shown live, otherwise line by line."""

    def __init__(self) -> None:
        """Time counts from here."""
        self.console = Console(soft_wrap=True)
        self._begin = time.monotonic()

    def heading(self, text: str) -> None:
        """Prints the heading of a new part."""
        self.console.print()
        self.console.print(f"[bold]== {text}[/bold]  [dim]{self._elapsed()}[/dim]", highlight=False)

    def say(self, text: str) -> None:
        """Prints a plain line."""
        self.console.print(f"   {text}", markup=False, highlight=False)

    def check(self, holds: object, text: str) -> None:
        """States something; raises DemoError when it does not hold."""
        if not holds:
            raise DemoError(f"not so: {text}")
        self.console.print(f"   [green]✓[/green] {safe(text)}", highlight=False)

    async def follow(self, session: Session, *, until_running: bool = False) -> Session:
        """Shows a session until it has ended, or runs; returns it."""
        progress = open_progress(self.console)
        try:
            async with aclosing(session.progress()) as steps:
                async for step in steps:
                    progress.show(step.view)
                    if until_running and step.view.state == session_pb2.SESSION_STATE_RUNNING:
                        break
        finally:
            progress.close()
        if until_running and enum_names.is_ended(session.view):
            raise DemoError(f"{session.name} ended before it ran: {outcome(session.view)}")
        return session

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._begin:.1f} s"
