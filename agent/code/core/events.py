"""Runs of code and what happens in them, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """A step of a batch run."""

    CLEAN = "clean"
    BUILD = "build"
    EXECUTE = "execute"


class Status(Enum):
    """How a run ended."""

    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed out"
    PROCESS_LOST = "process lost"


class Level(Enum):
    """How serious a remark is."""

    INFO = "INFO"
    WARNING = "WARNING"


@dataclass(frozen=True, slots=True)
class Batch:
    """Shell commands to run one after the other; an empty one is not run, and `*` stands for the usual one."""

    clean: str = ""
    build: str = ""
    execute: str = ""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that a caller asks for: a batch, or else code. `timeout` is in seconds."""

    run_id: str
    code: str = ""
    batch: Batch | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Queued:
    """So many runs are ahead."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Started:
    """The run, or a phase of a batch, has started."""

    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """What the run printed."""

    text: str
    errors: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """One form of what is shown."""

    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Media:
    """Something to show, in one form or several; `update` replaces what was shown under the same `display_id`."""

    forms: tuple[Form, ...]
    result: bool = False
    display_id: str = ""
    update: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """What the agent has to say about the run."""

    message: str
    level: Level = Level.WARNING


@dataclass(frozen=True, slots=True)
class InputRequest:
    """The run asks for a line of input."""

    prompt: str = ""
    password: bool = False


@dataclass(frozen=True, slots=True)
class PhaseFinished:
    """A phase of a batch has ended."""

    phase: Phase
    exit_code: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has ended."""

    status: Status = Status.OK
    exit_code: int = 0
    error_name: str = ""
    error_value: str = ""
    traceback: tuple[str, ...] = ()


Event = Queued | Started | Text | Media | Notice | InputRequest | PhaseFinished | Finished


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event and its offset in its run."""

    offset: int
    event: Event


@dataclass(frozen=True, slots=True)
class Completions:
    """Words that could stand in code instead of its characters from `start` to `end`."""

    matches: tuple[str, ...] = ()
    start: int = 0
    end: int = 0


def size(event: Event) -> int:
    """Returns how many bytes an event has, but for a few: those of its texts as UTF-8, and of what it shows."""
    match event:
        case Text(text):
            return _length(text)
        case Media(forms=forms):
            return sum(len(form.data) + _length(form.mime_type) for form in forms)
        case Notice(message):
            return _length(message)
        case InputRequest(prompt):
            return _length(prompt)
        case Finished(error_name=name, error_value=value, traceback=lines):
            return sum(map(_length, (name, value, *lines)))
        case Queued() | Started() | PhaseFinished():
            return 0


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
