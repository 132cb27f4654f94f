"""What the lines `#RETINUE` and `#SBATCH` of a job script ask for. Pure.

Options of Slurm are taken where they mean the same here; what would mean something else is refused, all of it at once
with names and lines, and what has no meaning here is named, so that it can be printed.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client.command.slurm_scripts.sbatch_grammar import OptionValue, UnknownOptionError
from retinue.client.command.slurm_scripts.sbatch_meaning import SbatchOptions, Tasks, UnsupportedError
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_OURS, _SLURM = "#RETINUE", "#SBATCH"
_MAX_ELEMENTS = 10_000
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
# As in a shell, # begins a comment where a word could begin, and not within quotes.
_QUOTED = r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*\""""
_COMMENT = re.compile(rf"""((?:[^\s'"\\#]|{_QUOTED})(?:[^\s'"\\]|{_QUOTED})*)|#.*""")


@dataclass(frozen=True, slots=True)
class IgnoredOption:
    """An option that is left out: where it stands, which, and why."""

    location: str
    option: str
    why: str

    def __str__(self) -> str:
        """Returns a warning."""
        return f"{self.location}{self.option}{' is ' if self.option else ''}left out: {self.why}"


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """What a script asks for: options of `retinue run` as arguments, and what only the commands for scripts know."""

    arguments: Sequence[str]
    array: Array | None
    # Of Slurm; None where nothing was said of them.
    tasks: Tasks | None
    # Of Slurm: what changes what the command prints and sends along, by name.
    given: Mapping[str, str]
    # Of Slurm: what says how many kernels there are, and of what size, by name.
    shape: Mapping[str, str]
    ignored: Sequence[IgnoredOption]


@dataclass(frozen=True, slots=True)
class Array:
    """The indices of a job array in their order, and how many of its jobs may run at a time; None for all."""

    indices: tuple[int, ...]
    at_a_time: int | None


def parse_array(text: str) -> Array:
    """Returns an array written `0-9`, `1,3,7-11:2` or `0-99%5`. Raises UsageError."""
    listed, percent, number = text.partition("%")
    if percent and (not number.isdecimal() or int(number) == 0):
        raise UsageError(f"array {text!r}: after % there must be a number of jobs")
    indices: dict[int, None] = {}
    for part in listed.split(","):
        found = _RANGE.fullmatch(part)
        if found is None or (found[3] is not None and int(found[3]) == 0):
            raise UsageError(f"array {text!r}: {part!r} is not an index or a range like 0-9 or 0-9:3")
        first = int(found[1])
        wanted = range(first, int(found[2] or first) + 1, int(found[3] or 1))
        if not wanted or len(wanted) + len(indices) > _MAX_ELEMENTS:
            raise UsageError(f"array {text!r}: must be 1 to {_MAX_ELEMENTS:,} jobs")
        indices |= dict.fromkeys(wanted)
    return Array(tuple(indices), int(number) if percent else None)


def read_script(
    text: str,
    source: str,
    *,
    environment: Sequence[OptionValue] = (),
    typed: Sequence[OptionValue | UsageError] = (),
    own: Mapping[str, bool] | None = None,
    ignore_unknown: bool = False,
) -> ScriptOptions:
    """Returns what the lines of a script ask for: those before its first command, and of `#RETINUE` and `#SBATCH` the
    former ones last, so that they count; after them come options of sbatch from the environment and those that were
    `typed` on the command line, or what was wrong there. `own` are the options of `retinue submit` that may stand among
    them.

    Raises UsageError, with the line of each that is wrong or has no counterpart; with `ignore_unknown` the latter are
    left out.
    """
    if not text.startswith("#!"):
        raise UsageError(f"{source}: the first line must name an interpreter, as in #!/bin/sh")
    reading = _Reading(source, own or {}, ignore_unknown=ignore_unknown)
    ours = list[str]()
    for number, marker, words in _lines(text, source):
        if marker == _OURS:
            ours += words
        else:
            reading.take(number, reading.slurm.take_words(words))
    reading.begin_typed()
    for given in (*environment, *typed):
        reading.take(0, [given] if isinstance(given, UsageError) else reading.typed.take(given))
    return reading.options(ours)


class _Reading:
    """Takes in options of sbatch, with what is left out and what is wrong."""

    def __init__(self, source: str, own: Mapping[str, bool], *, ignore_unknown: bool) -> None:
        self._own = own
        self.slurm = self.typed = SbatchOptions(own)
        self._source = source
        self._ignore_unknown = ignore_unknown
        self._ignored: list[IgnoredOption] = []
        self._wrong: list[str] = []

    def begin_typed(self) -> None:
        """Ends the options of the script: what follows stands on the command line."""
        self.typed = SbatchOptions(self._own, self.slurm)

    def take(self, number: int, outcomes: Iterable[tuple[OptionValue, str] | UsageError]) -> None:
        """Takes in what became of options, of a line or with 0 of none."""
        location = f"{self._source}:{number}: " if number else ""
        for outcome in outcomes:
            if isinstance(outcome, tuple):
                given, why = outcome
                self._ignored.append(IgnoredOption(location, f"--{given.name}", why))
            elif self._ignore_unknown and isinstance(outcome, UnsupportedError | UnknownOptionError):
                self._ignored.append(IgnoredOption(location, "", str(outcome)))
            else:
                self._wrong.append(f"{location}{outcome}")

    def options(self, ours: Sequence[str]) -> ScriptOptions:
        """Returns the options. Raises UsageError with all that is wrong."""
        slurm, typed = self.slurm, self.typed
        array = slurm.array if typed.array is None else typed.array
        try:
            found = ScriptOptions(
                [*slurm.arguments(), *ours, *typed.arguments()],
                None if array is None else parse_array(array),
                typed.tasks(),
                slurm.given | typed.given,
                typed.shape,
                self._ignored,
            )
        except UsageError as error:
            self._wrong.append(f"{self._source}: {error}")
        if self._wrong:
            raise UsageError("\n".join(self._wrong))
        return found


def _lines(text: str, source: str) -> Iterator[tuple[int, str, Sequence[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return
        marker, _, rest = stripped.partition(" ")
        if marker in (_OURS, _SLURM):
            try:
                yield number, marker, shlex.split(_COMMENT.sub(r"\1", rest))
            except ValueError as error:
                raise UsageError(f"{source}:{number}: {error}") from error
