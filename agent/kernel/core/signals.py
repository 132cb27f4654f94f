"""Signals for a kernel's command, and for which of its processes they are. Pure.

A first process is sent one number for both, which `command.h` reads.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from signal import SIGTERM, Signals

MEANT = (
    Signals.SIGTERM,
    Signals.SIGINT,
    Signals.SIGHUP,
    Signals.SIGQUIT,
    Signals.SIGUSR1,
    Signals.SIGUSR2,
    Signals.SIGALRM,
    Signals.SIGCONT,
    Signals.SIGWINCH,
    Signals.SIGKILL,
)
"""The signals that more than the command may get, in the order of `command.h`."""
_TO_ALL, _TO_STARTED = 40, 50


class Target(enum.Enum):
    """The processes that a signal is for."""

    COMMAND = "COMMAND"
    ALL = "ALL"
    """The command and all that it has started."""
    STARTED = "STARTED"
    """What the command has started; itself if that is nothing."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A signal, one of MEANT, and whom it is for."""

    signal: Signals = SIGTERM
    target: Target = Target.COMMAND

    @property
    def code(self) -> int:
        """Returns the number by which a first process is told."""
        match self.target:
            case Target.COMMAND:
                return self.signal
            case Target.ALL:
                return _TO_ALL + MEANT.index(self.signal)
            case Target.STARTED:
                return _TO_STARTED + MEANT.index(self.signal)


_BY_CODE = {made.code: made for target in Target for signal in MEANT for made in (Delivery(signal, target),)}


def delivery_of(code: int) -> Delivery:
    """Returns the delivery of a code; SIGTERM for the command alone when it is none."""
    return _BY_CODE.get(code, Delivery())


def signal_named(name: str) -> Signals | None:
    """Returns the signal of a name, with or without SIG before it, or of a number, as images write it; None for one
    that is not among MEANT.
    """
    wanted = name.strip().upper()
    return next((one for one in MEANT if wanted in {one.name, one.name.removeprefix("SIG"), str(one.value)}), None)
