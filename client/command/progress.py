"""Shows a session's progress to RUNNING and to its end: a live view on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from retinue.client import enum_names
from retinue.client.command.printable import safe
from retinue.client.command.text import or_dash, span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from retinue.manager.v1 import session_pb2

# Beyond this, kernels are counted by state and not shown one by one.
_SHOWN_KERNELS = 24
_STYLES = {"RUNNING": "green", "TERMINATED": "dim", "CANCELLED": "dim", "PENDING": "yellow"}


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
    """Returns a live view if the console is a terminal, else plain lines."""
    return LiveProgress(console) if console.is_terminal and not console.is_dumb_terminal else PlainProgress(console)


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


class LiveProgress:
    """A picture that is drawn again: the session, why it waits, and a line per kernel."""

    def __init__(self, console: Console) -> None:
        """The picture is drawn on `console`, a terminal."""
        self._console = console
        self._session: session_pb2.Session | None = None
        self._note = ""
        self._spinner = Spinner("dots")
        self._live: Live | None = None
        self._closed = False

    def show(self, session: session_pb2.Session) -> None:
        """Draws the session as it is now; one that has ended closes the view.
        After that only its states are printed.
        """
        before, self._session = self._session, session
        if self._closed:
            if before is None or before.state != session.state:
                self.say(changes(None, session)[0])
        elif enum_names.is_ended(session):
            self.close()
        elif self._live is None:
            self._live = Live(
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
        if len(session.kernels) <= _SHOWN_KERNELS:
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


def reason_text(session: session_pb2.Session) -> str:
    """Returns why the session is in its state, safe to print; empty when no reason is given."""
    return ": ".join(safe(part) for part in (session.reason, session.message) if part)


def elapsed(session: session_pb2.Session, now: float) -> float:
    """Returns the seconds since a session was requested, to its end if it has ended; `now` in seconds since 1970.
    Never negative.
    """
    end = enum_names.time_of(session, "end_time")
    return max(0.0, (now if end is None else end) - (enum_names.time_of(session, "create_time") or now))


def summary(session: session_pb2.Session, seconds: float) -> str:
    """Returns one line on a session, `seconds` after it was asked for."""
    agents = sorted({kernel.agent for kernel in session.kernels if kernel.agent})
    parts = [f"{safe(session.spec.name)}: {enum_names.state_of(session)}"]
    if enum_names.is_ended(session):
        parts = [f"{safe(session.spec.name)}: {outcome(session)}"]
    elif agents:
        parts.append(f"on {safe(', '.join(agents))}")
    parts.append(f"after {seconds:.1f} s")
    return " ".join(parts)


def outcome(session: session_pb2.Session) -> str:
    """Returns how a session ended, safe to print:
    `TERMINATED SUCCESS, exit code 0 (COMMAND_ENDED: main1 exited with 0)`.
    """
    text = enum_names.state_of(session)
    result = enum_names.name_of(enum_names.SESSION_RESULT, session.result)
    if result not in ("UNDEFINED", "UNSPECIFIED"):
        text += f" {result}"
    if session.HasField("exit_code"):
        text += f", exit code {session.exit_code}"
    reason = reason_text(session)
    return f"{text} ({reason})" if reason else text


def pull_text(kernel: session_pb2.Kernel) -> str:
    """Returns the progress of a kernel's image pull: `43 % of 2.8 GB`; empty when it is unknown."""
    pull = kernel.pull
    if not pull.total_bytes:
        return ""
    return f"{100 * pull.bytes // pull.total_bytes} % of {decimal(pull.total_bytes)}"


def kernel_counts(session: session_pb2.Session) -> str:
    """Returns the number of kernels in each state: `3 RUNNING, 1 CREATING`."""
    counts: dict[str, int] = {}
    for kernel in sorted(session.kernels, key=lambda kernel: -kernel.state):
        state = enum_names.name_of(enum_names.KERNEL_STATE, kernel.state)
        counts[state] = counts.get(state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def changes(before: session_pb2.Session | None, after: session_pb2.Session) -> list[str]:
    """Returns the lines, safe, on what is different after an event; pure. The session's own line comes first."""
    name = safe(after.spec.name)
    lines = []
    if before is None or (before.state, before.reason, before.message) != (after.state, after.reason, after.message):
        reason = reason_text(after)
        state = (
            outcome(after)
            if enum_names.is_ended(after)
            else enum_names.state_of(after) + (f" ({reason})" if reason else "")
        )
        lines.append(f"{name}: {state}")
    known = {condition.type for condition in before.conditions} if before is not None else set()
    lines += [
        f"{name}: {safe(condition.type)}: {safe(condition.message)}"
        for condition in after.conditions
        if condition.type not in known
    ]
    if before is None:
        return lines
    moved = [
        kernel
        for kernel, earlier in zip(after.kernels, before.kernels, strict=False)
        if (kernel.state, kernel.agent, kernel.pull) != (earlier.state, earlier.agent, earlier.pull)
        and not (kernel.state == earlier.state and not kernel.pull.total_bytes)
    ]
    if len(after.kernels) > _SHOWN_KERNELS:
        return [*lines, f"{name}: {kernel_counts(after)}"] if moved else lines
    for kernel in moved:
        state = enum_names.name_of(enum_names.KERNEL_STATE, kernel.state)
        location = f" on {or_dash(kernel.agent)}" if kernel.agent else ""
        if fetched := pull_text(kernel):
            location += f", {fetched}"
        code = f", exit code {kernel.exit_code}" if kernel.HasField("exit_code") else ""
        lines.append(f"{name}: {safe(kernel.hostname)} {state}{location}{code}")
    return lines
