"""What the lines `#RETINUE` and `#SBATCH` of a job script ask for. Pure.

Options of Slurm are taken where they mean the same here; what would mean something else is refused, by its name and
line, and what has no meaning here is named, so that it can be printed.
"""

from __future__ import annotations

import re
import shlex
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SCRIPT_VARIABLE = "JOB_SCRIPT"
"""The variable in which a script travels to where it runs."""

_OURS, _SLURM = "#RETINUE", "#SBATCH"
# Words that begin a command in a shell, before a name.
_CALL = r"(?:^|[;&|(`{{]|\$\(|\b(?:then|do|else|exec|time|if|while|until|!))\s*{}(?=\s|$)"
_MAX_ELEMENTS = 10_000
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_SIGNAL = re.compile(r"(?:(B):)?((?:SIG)?[A-Z0-9]+)(?:@(\d+))?", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_GPUS = re.compile(r"(?:gres/)?gpu(?::([A-Za-z][\w.-]*))?(?:[:=](\d+))?")
# As in a shell, # begins a comment where a word could begin, and not within quotes.
_QUOTED = r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*\""""
_COMMENT = re.compile(rf"""((?:[^\s'"\\#]|{_QUOTED})(?:[^\s'"\\]|{_QUOTED})*)|#.*""")
_HOSTS = re.compile(
    r"(?P<before>[^\[\],]*)(?:\[(?P<ranges>\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)\](?P<after>[^\[\],]*))?"
)
# Short options of sbatch, by letter, and those that take no value.
_SHORT = {
    "J": "job-name", "t": "time", "c": "cpus-per-task", "n": "ntasks", "N": "nodes", "p": "partition", "A": "account", "a": "array",
    "d": "dependency", "o": "output", "e": "error", "H": "hold", "b": "begin", "G": "gpus", "w": "nodelist", "D": "chdir", "x": "exclude",
    "C": "constraint", "q": "qos", "i": "input", "L": "licenses", "M": "clusters", "s": "oversubscribe", "Q": "quiet", "W": "wait",
    "k": "no-kill", "v": "verbose", "S": "core-spec", "m": "distribution",
}  # fmt: skip
_FLAGS = frozenset(
    {
        "hold",
        "requeue",
        "no-requeue",
        "exclusive",
        "quiet",
        "verbose",
        "wait",
        "no-kill",
        "overcommit",
        "parsable",
        "oversubscribe",
    }
)
# Together they say how many kernels there are, and of what size.
_SHAPE = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "mem-per-cpu"),
        *("gres", "gpus", "gpus-per-node", "gpus-per-task"),
    }
)
# They have no meaning here, and the job does the same without.
IGNORED: Mapping[str, str] = {
    "output": "output is kept by the manager: retinue logs",
    "error": "output is kept by the manager: retinue logs",
    "open-mode": "output is kept by the manager: retinue logs",
    "mail-type": "webhooks of the session say when it ends",
    "mail-user": "webhooks of the session say when it ends",
    "no-requeue": "a job runs once unless it asks for retries",
    "verbose": "use retinue -v",
    "parsable": "ids are on standard output by themselves",
    "no-kill": "a job ends with any of its nodes",
    "distribution": "the resource group's strategy decides",
}


@dataclass(slots=True)
class ScriptOptions:
    """What a script asks for: options of `retinue run` as arguments, and what only `retinue submit` knows."""

    arguments: list[str] = field(default_factory=list)
    array: Array | None = None
    # Of Slurm: what was left out, as (line, option, why).
    ignored: list[tuple[int, str, str]] = field(default_factory=list)


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


def calls(text: str, program: str) -> int | None:
    """Returns the number of the first line of a script that calls a program by its name; None when none does.
    It reads words, not the language of the shell.
    """
    call = re.compile(_CALL.format(re.escape(program)))
    for number, line in enumerate(text.splitlines(), 1):
        if call.search(re.sub(r"(^|\s)#.*", "", line).strip()):
            return number
    return None


def of_sbatch(name: str) -> bool:
    """Returns whether sbatch has a long option of that name which is read or refused here by its name."""
    return name in _READERS or name in _SHAPE or name in IGNORED or name in _FLAGS or name in _SHORT.values()


def long_name(letter: str) -> str:
    """Returns the long name of a short option of sbatch; empty if it has none of that letter."""
    return _SHORT.get(letter, "")


def take_option(rest: list[str]) -> list[str]:
    """Takes one option of sbatch off the words of a command line, with its value. Raises UsageError."""
    name, value = _option(rest)
    return [f"--{name}" if name in _FLAGS else f"--{name}={value}"]


def read_script(text: str, source: str, typed: Sequence[str] = ()) -> ScriptOptions:
    """Returns what the lines of a script ask for: those before its first command, and of `#RETINUE` and `#SBATCH` the
    former ones last, so that they count; after them come options of sbatch that were `typed` on the command line.
    Raises UsageError, with the line.
    """
    if not text.startswith("#!"):
        raise UsageError(f"{source}: the first line must name an interpreter, as in #!/bin/sh")
    options, ours = ScriptOptions(), list[str]()
    slurm = _Slurm(options)
    for number, marker, words in _lines(text, source):
        try:
            if marker == _OURS:
                ours += words
            else:
                slurm.take(number, words)
        except UsageError as error:
            raise UsageError(f"{source}:{number}: {error}") from error
    try:
        options.arguments = [*slurm.arguments(), *ours]
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
    if typed:
        options.arguments += slurm.typed(typed)
    return options


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


class _Slurm:
    """Options of sbatch, of which later ones count."""

    def __init__(self, options: ScriptOptions) -> None:
        self._options = options
        self._found: dict[str, list[str]] = {}
        self._shape: dict[str, str] = {}

    def take(self, number: int, words: Sequence[str]) -> None:
        """Takes the options of one line in. Raises UsageError."""
        rest = list(words)
        while rest:
            name, value = _option(rest)
            if why := IGNORED.get(name):
                self._options.ignored.append((number, name, why))
                continue
            if name in _SHAPE:
                self._shape[name] = value
                continue
            reader = _READERS.get(name)
            if reader is None:
                raise UsageError(f"--{name} of sbatch has no counterpart here: take it out, or use #RETINUE")
            reader(self, value)

    def typed(self, words: Sequence[str]) -> list[str]:
        """Returns the options for those of a command line, which go before those of the script. Raises UsageError."""
        other = _Slurm(self._options)
        other._shape = dict(self._shape)
        other.take(0, words)
        if other._shape == self._shape:
            other._shape = {}
        return other.arguments()

    def set(self, *arguments: str) -> None:
        """Sets an option of `retinue run`, in place of what it was."""
        self._found[arguments[0]] = list(arguments)

    def array(self, value: str) -> None:
        """Makes it an array."""
        self._options.array = parse_array(value)

    def arguments(self) -> list[str]:
        """Returns all options. Raises UsageError."""
        return [*_shape(self._shape), *(word for words in self._found.values() for word in words)]


def _option(rest: list[str]) -> tuple[str, str]:
    """Takes one option off the words: its long name, and its value."""
    word = rest.pop(0)
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if not equals and name not in _FLAGS:
            value = _value(name, rest)
        return name, value
    if len(word) > 1 and word[0] == "-":
        name = _SHORT.get(word[1], word[1])
        if name in _FLAGS:
            return name, ""
        return name, word[2:] or _value(name, rest)
    raise UsageError(f"{word!r} is not an option")


def _value(name: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"--{name} needs a value")
    return rest.pop(0)


def _whole(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise UsageError(f"--{name}={value}: must be a number from 1")
    return int(value)


def _name(slurm: _Slurm, value: str) -> None:
    made = re.sub(r"[^a-z0-9-]+", "-", value.lower()).strip("-")[:63]
    if not made:
        raise UsageError(f"--job-name={value}: a name has letters or digits")
    # Names of jobs are no names of sessions: several may have the same.
    slurm.set("--job-name", made)


def _time(slurm: _Slurm, value: str) -> None:
    if value.upper() in ("UNLIMITED", "INFINITE"):
        return
    found = _TIME.fullmatch(value)
    if found is None:
        raise UsageError(f"--time={value}: write minutes, HH:MM:SS, or D-HH:MM:SS")
    days, parts = int(found[1] or 0), [int(part) for part in found.groups()[1:] if part is not None]
    # Without days: M, M:S, H:M:S; with them: H, H:M, H:M:S.
    units = (3600, 60, 1) if found[1] is not None or len(parts) == 3 else (60, 1)  # noqa: PLR2004
    seconds = days * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    if seconds:
        slurm.set("--time-limit", f"{seconds}s")


def _signal(slurm: _Slurm, value: str) -> None:
    found = _SIGNAL.fullmatch(value)
    if found is None:
        raise UsageError(f"--signal={value}: write USR1@60, or B:USR1@60 for the script alone")
    # Without B, Slurm signals what the script runs, and not its shell.
    whom = "" if found[1] else "started:"
    name = found[2].upper().removeprefix("SIG")
    if name.isdecimal():
        try:
            name = signal.Signals(int(name)).name.removeprefix("SIG")
        except ValueError:
            raise UsageError(f"--signal={value}: there is no signal {name}") from None
    slurm.set("--signal", f"{whom}{name}@{found[3] or 60}s")


def _shape(given: Mapping[str, str]) -> list[str]:
    """Returns the kernels that tasks, nodes and amounts stand for: one kernel for each task.
    Raises UsageError where they stand for none.
    """
    nodes = _whole("nodes", given["nodes"].split("-")[-1]) if "nodes" in given else None
    tasks = _whole("ntasks", given["ntasks"]) if "ntasks" in given else None
    per_node = _whole("ntasks-per-node", given["ntasks-per-node"]) if "ntasks-per-node" in given else None
    if tasks is None:
        tasks = (nodes or 1) * (per_node or 1)
    if nodes is not None and 1 < nodes != tasks:
        raise UsageError(
            f"--nodes={nodes} with {tasks} tasks: one kernel for each task is placed where there is room; take --nodes out"
        )
    alone = tasks in {1, nodes}
    slots: dict[str, str] = {}
    cpus = _whole("cpus-per-task", given.get("cpus-per-task", "1"))
    if "cpus-per-task" in given:
        slots["cpu"] = str(cpus)
    if "mem" in given:
        if not alone:
            raise UsageError(f"--mem={given['mem']} is for all tasks of a node: use --mem-per-cpu")
        slots["mem"] = _memory("mem", given["mem"], 1)
    if "mem-per-cpu" in given:
        slots["mem"] = _memory("mem-per-cpu", given["mem-per-cpu"], cpus)
    for name in ("gpus", "gres", "gpus-per-node", "gpus-per-task"):
        if name in given:
            if name != "gpus-per-task" and tasks > 1 and (name == "gpus" or not alone):
                raise UsageError(f"--{name}={given[name]} is for several tasks: use --gpus-per-task")
            slots["cuda.device"] = _gpus(name, given[name])
    arguments = ["--slots", ",".join(f"{name}={amount}" for name, amount in slots.items())] if slots else []
    if tasks > 1:
        arguments += ["--size", str(tasks), "--mode", "single-node" if nodes == 1 else "multi-node"]
    return arguments


def _memory(name: str, value: str, times: int) -> str:
    found = _MEMORY.fullmatch(value)
    if found is None or not int(found[1]):
        raise UsageError(
            f"--{name}={value}: write a number of megabytes, or one with K, M, G or T; there is no word for all of a node"
        )
    return f"{int(found[1]) * times}{(found[2] or 'M').lower()}"


def _gpus(name: str, value: str) -> str:
    found = _GPUS.fullmatch(value) if name == "gres" else re.fullmatch(r"(?:([A-Za-z][\w.-]*):)?(\d+)", value)
    if found is None:
        raise UsageError(
            f"--{name}={value}: only GPUs have a counterpart; other devices are slots: #RETINUE --slots NAME=NUMBER"
        )
    if found[1]:
        raise UsageError(f"--{name}={value}: kinds of GPUs are slots or resource groups: #RETINUE --slots or --group")
    return found[2] or "1"


_DEPENDENCIES = {"afterok": "--depends-on", "afterany": "--after", "aftercorr": "--depends-on-each"}


def _dependency(slurm: _Slurm, value: str) -> None:
    if "?" in value:
        raise UsageError(f"--dependency={value}: all of them are waited for, not any")
    found: dict[str, list[str]] = {}
    for part in value.split(","):
        kind, *jobs = part.split(":")
        if not jobs or not all(jobs) or kind not in _DEPENDENCIES:
            raise UsageError(
                f"--dependency={part}: afterok:SESSION, afterany:SESSION and aftercorr:ARRAY have a counterpart"
            )
        found.setdefault(_DEPENDENCIES[kind], []).extend(jobs)
    for option, jobs in found.items():
        slurm.set(option, *_repeated(option, jobs))


def _repeated(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)][1:]


def _export(slurm: _Slurm, value: str) -> None:
    if value == "NONE":
        return
    listed = [part for part in value.split(",") if part != "NIL"]
    if "ALL" in listed:
        raise UsageError(
            f"--export={value}: not all variables of this machine go along; write NAME, NAME=VALUE, or NONE"
        )
    slurm.set("-e", *_repeated("-e", listed))


def _begin(slurm: _Slurm, value: str) -> None:
    found = re.fullmatch(r"now\+(\d+)(seconds?|minutes?|hours?|days?|weeks?)?", value)
    if found is not None:
        slurm.set("--earliest-start-time", f"{found[1]}{(found[2] or 's')[0]}")
    elif re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", value):
        slurm.set("--earliest-start-time", value)
    else:
        raise UsageError(f"--begin={value}: write now+1hour, or 2026-01-31T12:00:00")


def _plain(option: str) -> Callable[[_Slurm, str], None]:
    return lambda slurm, value: slurm.set(option, value)


def _image(slurm: _Slurm, value: str) -> None:
    """Takes an image as Pyxis has it, in which # may stand after the registry."""
    if value.startswith(("/", "./")):
        raise UsageError(
            f"--container-image={value}: an image comes from a registry, as nvcr.io/nvidia/pytorch:24.05-py3"
        )
    slurm.set("--image", value.removeprefix("docker://").replace("#", "/", 1))


def _agents(slurm: _Slurm, value: str) -> None:
    slurm.set("--agent", *_repeated("--agent", _hosts(value)), "--strict-agents")


def _hosts(value: str) -> list[str]:
    """Returns the names of a list such as `n1,gpu[01-03,7]`. Raises UsageError."""
    names = list[str]()
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[,\[\]]", value):
        if part == ",":
            continue
        found = _HOSTS.fullmatch(part)
        if found is None:
            raise UsageError(f"--nodelist={value}: write names, separated by commas, or ranges of them as n[1-3,5]")
        if found["ranges"] is None:
            names.append(part)
            continue
        for item in found["ranges"].split(","):
            first, _, last = item.partition("-")
            if not 0 <= int(last or first) - int(first) < _MAX_ELEMENTS:
                raise UsageError(f"--nodelist={value}: {item} is no range")
            numbers = range(int(first), int(last or first) + 1)
            names += [f"{found['before']}{number:0{len(first)}d}{found['after']}" for number in numbers]
    return names


_READERS: Mapping[str, Callable[[_Slurm, str], None]] = {
    "job-name": _name,
    "time": _time,
    "signal": _signal,
    "partition": _plain("--group"),
    "account": _plain("--project"),
    "array": lambda slurm, value: slurm.array(value),
    "dependency": _dependency,
    "quiet": lambda slurm, _: slurm.set("--quiet"),
    "hold": lambda slurm, _: slurm.set("--hold"),
    "begin": _begin,
    "export": _export,
    "nodelist": _agents,
    "requeue": lambda slurm, _: slurm.set("--retry", "3"),
    "wait": lambda slurm, _: slurm.set("--wait"),
    "comment": lambda slurm, value: slurm.set("--label", f"comment={value}"),
    "container-image": _image,
}
