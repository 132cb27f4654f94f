"""What options of sbatch mean as options of `retinue submit`. Pure."""

from __future__ import annotations

import datetime as dt
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client.command.slurm_scripts import sbatch_grammar
from retinue.client.command.slurm_scripts.hostlist import expand
from retinue.client.command.slurm_scripts.sbatch_grammar import (
    BY_NAME,
    NO_FEATURES,
    OptionValue,
    Treatment,
    UnknownOptionError,
)
from retinue.client.command.slurm_scripts.times import parse_limit, parse_moment
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

JOB_NAME_LABEL = "slurm.job-name"
"""The label that has the name of a job as it was given; names of sessions have fewer characters."""

_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE)
_SIGNAL = re.compile(r"(?:(B):)?((?:SIG)?[A-Z0-9]+)(?:@(\d+))?", re.IGNORECASE)
_GPUS = re.compile(r"(?:gres/)?gpu(?::([A-Za-z][\w.-]*))?(?:[:=](\d+))?")
# Together they say how many kernels there are, and of what size.
_SHAPE = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu"),
        *("mem", "mem-per-cpu", "mem-per-gpu", "tmp", "gres", "gpus", "gpus-per-node", "gpus-per-task"),
    }
)
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_DEFAULT_PRIORITY, _HIGHEST_PRIORITY, _NICE_STEP = 10, 100, 100


class UnsupportedError(UsageError):
    """An option, or a value of one, that has no counterpart: `--ignore-unknown` leaves it out."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many tasks a job has in all, and in each kernel; `cpus` are those of a task, None when nothing was said."""

    number: int
    per_kernel: int
    cpus: int | None


class SbatchOptions:
    """Options of sbatch, of which later ones count, as options of `retinue submit`."""

    def __init__(self, own: Mapping[str, bool], before: SbatchOptions | None = None) -> None:
        """`own` are the long options of `retinue submit` besides, with whether they have a value. `before` are those of
        a script, beside which these are from a command line.
        """
        self._own = own
        self._found: dict[str, list[str]] = {}
        self._shape_before: Mapping[str, str] = before.shape if before is not None else {}
        self.shape: dict[str, str] = dict(self._shape_before)
        """What says how many kernels there are, and of what size."""
        self._own_words: list[str] = []
        self.array: str | None = None
        self.given: dict[str, str] = {}
        """The options that change what the command prints, by name, such as `parsable`."""

    def take_words(self, words: Sequence[str]) -> Iterable[tuple[OptionValue, str] | UsageError]:
        """Takes in the options of one line; yields those that are left out, with the reason, and what is wrong."""
        rest = list(words)
        while rest:
            try:
                given = sbatch_grammar.take(rest, self._own)
            except UsageError as error:
                yield error
                if isinstance(error, UnknownOptionError):
                    continue
                return
            yield from self.take(given)

    def take(self, given: OptionValue) -> Iterable[tuple[OptionValue, str] | UsageError]:
        """Takes in one option; yields it if it is left out, with the reason, and what is wrong."""
        option = BY_NAME.get(given.name)
        try:
            if option is None:
                self._own_words += [f"--{given.name}", *([given.value] if self._own[given.name] else [])]
            elif option.treatment is Treatment.REFUSED:
                raise UnsupportedError(f"--{given.name} of sbatch has no counterpart here: {option.text}")
            elif option.treatment is Treatment.IGNORED:
                yield given, option.text
            elif given.name in _SHAPE:
                self.shape[given.name] = given.value
            elif given.name in _READERS:
                _READERS[given.name](self, given.value)
            else:
                self.given[given.name] = given.value
        except UsageError as error:
            yield error

    def set(self, *arguments: str, key: str = "") -> None:
        """Sets an option of `retinue submit`, in place of what it was; with `key` of what has the same key."""
        self._found[key or arguments[0]] = list(arguments)

    def tasks(self) -> Tasks | None:
        """Returns the tasks; None where nothing was said of them. Raises UsageError."""
        return _shape(self.shape)[1] if self.shape else None

    def arguments(self) -> list[str]:
        """Returns all options. Raises UsageError."""
        changed = self.shape != self._shape_before
        shape = _shape(self.shape)[0] if changed else []
        if changed and self._shape_before and "--size" not in shape:
            # In place of the script's.
            shape = [*shape, "--size", "1"]
        return [*shape, *(word for words in self._found.values() for word in words), *self._own_words]


def _whole(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise UsageError(f"--{name}={value}: must be a number from 1")
    return int(value)


def _name(options: SbatchOptions, value: str) -> None:
    if not value.strip():
        raise UsageError("--job-name: a name has letters or digits")
    # Names of jobs are no names of sessions: several may have the same.
    options.set("--job-name", value)


def _time(options: SbatchOptions, value: str) -> None:
    seconds = parse_limit(value)
    if seconds is None:
        raise UsageError(f"--time={value}: write minutes, HH:MM:SS, or D-HH:MM:SS")
    if seconds:
        options.set("--time-limit", f"{seconds}s")


def _signal(options: SbatchOptions, value: str) -> None:
    found = _SIGNAL.fullmatch(value)
    if found is None:
        raise UsageError(f"--signal={value}: write USR1@60, or B:USR1@60 for the script alone")
    # Without B, Slurm signals what the script runs, and not its shell.
    whom = "" if found[1] else "started:"
    options.set("--signal", f"{whom}{signal_name(found[2], f'--signal={value}')}@{found[3] or 60}s")


def signal_name(text: str, option: str) -> str:
    """Returns the name of a signal without SIG, from a name or number. Raises UsageError, which names the option."""
    name = text.upper().removeprefix("SIG")
    if not name.isdecimal():
        return name
    try:
        return signal.Signals(int(name)).name.removeprefix("SIG")
    except ValueError:
        raise UsageError(f"{option}: there is no signal {name}") from None


@dataclass(frozen=True, slots=True)
class _Gpus:
    """The GPUs that are asked for: in all, for a node, for a task; None where nothing was said."""

    total: int | None
    per_node: int | None
    per_task: int | None


def _shape(given: Mapping[str, str]) -> tuple[list[str], Tasks]:
    """Returns the kernels that tasks, nodes and amounts stand for, and the tasks: with --nodes, or with amounts for a
    node, a kernel for each node; else one for each task. Raises UsageError where they stand for none.
    """
    gpus = _Gpus(
        _gpus("gpus", given["gpus"]) if "gpus" in given else None,
        next((_gpus(name, given[name]) for name in ("gpus-per-node", "gres") if name in given), None),
        _gpus("gpus-per-task", given["gpus-per-task"]) if "gpus-per-task" in given else None,
    )
    nodes = _nodes(given["nodes"]) if "nodes" in given else None
    tasks = _whole("ntasks", given["ntasks"]) if "ntasks" in given else None
    per_node = _whole("ntasks-per-node", given["ntasks-per-node"]) if "ntasks-per-node" in given else None
    if nodes is None and gpus.total is not None and gpus.per_node:
        nodes = -(-gpus.total // gpus.per_node)
    if tasks is None and "ntasks-per-gpu" in given:
        number = gpus.total if gpus.total is not None else (gpus.per_node or 0) * (nodes or 1)
        tasks = max(1, number * _whole("ntasks-per-gpu", given["ntasks-per-gpu"]))
    for_nodes = "mem" in given or "tmp" in given or gpus.per_node is not None or gpus.total is not None
    if nodes is None and per_node is not None:
        nodes = -(-tasks // per_node) if tasks is not None else 1
    elif nodes is None and for_nodes:
        nodes = 1
    if tasks is None:
        tasks = (nodes or 1) * (per_node or 1)
    kernels = tasks if nodes is None else min(nodes, tasks)
    per_kernel = -(-tasks // kernels)
    slots = _slots(given, gpus, kernels, per_kernel)
    arguments = ["--slots", ",".join(f"{name}={amount}" for name, amount in slots.items())] if slots else []
    if kernels > 1:
        arguments += ["--size", str(kernels), "--mode", "multi-node"]
    cpus = _whole("cpus-per-task", given["cpus-per-task"]) if "cpus-per-task" in given else None
    return arguments, Tasks(tasks, per_kernel, cpus)


def _slots(given: Mapping[str, str], gpus: _Gpus, kernels: int, per_kernel: int) -> dict[str, str]:
    """Returns the amounts of each kernel."""
    devices = _devices(gpus, kernels, per_kernel)
    cpus = 0
    if "cpus-per-task" in given or per_kernel > 1:
        cpus = per_kernel * _whole("cpus-per-task", given.get("cpus-per-task", "1"))
    if "cpus-per-gpu" in given:
        cpus = max(cpus, (devices or 1) * _whole("cpus-per-gpu", given["cpus-per-gpu"]))
    slots = {"cpu": str(cpus)} if cpus else {}
    for name, times in (("mem", 1), ("mem-per-cpu", cpus or 1), ("mem-per-gpu", devices or 1)):
        # As in Slurm, 0 is all memory of a node.
        if name in given:
            slots["mem"] = _bytes(name, given[name], times)
    if "tmp" in given:
        slots["disk"] = _bytes("tmp", given["tmp"], 1)
    if devices is not None:
        slots["cuda.device"] = str(devices)
    return slots


def _devices(gpus: _Gpus, kernels: int, per_kernel: int) -> int | None:
    """Returns the GPUs of each kernel."""
    if gpus.per_node is not None:
        return gpus.per_node
    if gpus.total is not None:
        if gpus.total % kernels:
            raise UsageError(f"--gpus={gpus.total} is not the same number for each of {kernels} kernels")
        return gpus.total // kernels
    return gpus.per_task * per_kernel if gpus.per_task is not None else None


def _nodes(value: str) -> int:
    return _whole("nodes", value.rpartition("-")[2])


def _bytes(name: str, value: str, times: int) -> str:
    found = _MEMORY.fullmatch(value)
    if found is None or not float(found[1]):
        raise UsageError(
            f"--{name}={value}: write a number of megabytes, or one with K, M, G or T; there is no word for all of a node"
        )
    kilobytes = float(found[1]) * times * 1024 ** "KMGT".index((found[2] or "M").upper())
    unit = next(unit for unit in "TGMK" if unit == "K" or kilobytes % 1024 ** "KMGT".index(unit) == 0)
    return f"{round(kilobytes / 1024 ** 'KMGT'.index(unit))}{unit.lower()}"


def _gpus(name: str, value: str) -> int:
    found = _GPUS.fullmatch(value) if name == "gres" else re.fullmatch(r"(?:([A-Za-z][\w.-]*):)?(\d+)", value)
    if found is None:
        raise UnsupportedError(
            f"--{name}={value}: only GPUs have a counterpart; other devices are slots: #RETINUE --slots NAME=NUMBER"
        )
    if found[1]:
        raise UnsupportedError(
            f"--{name}={value}: kinds of GPUs are slots or resource groups: #RETINUE --slots or --group"
        )
    return int(found[2] or "1")


_DEPENDENCIES = {
    "afterok": "--depends-on",
    "afterany": "--after",
    "afternotok": "--after-failure",
    "aftercorr": "--depends-on-each",
}


def _dependency(options: SbatchOptions, value: str) -> None:
    if "?" in value:
        raise UnsupportedError(f"--dependency={value}: all of them are waited for, not any")
    found: dict[str, list[str]] = {}
    for part in value.split(","):
        kind, *jobs = part.split(":")
        if part == "singleton":
            found["--after-label"] = [JOB_NAME_LABEL]
            continue
        if kind.replace("_", "").isdecimal():
            # What is no kind is a job, after which afterany is meant.
            kind, jobs = "afterany", [kind, *jobs]
        if not jobs or not all(jobs) or kind not in _DEPENDENCIES:
            raise UnsupportedError(
                f"--dependency={part}: afterok:SESSION, afternotok:SESSION, afterany:SESSION, aftercorr:ARRAY and "
                "singleton have a counterpart"
            )
        found.setdefault(_DEPENDENCIES[kind], []).extend(jobs)
    for option, jobs in found.items():
        options.set(*_repeated(option, jobs))


def _repeated(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _export(options: SbatchOptions, value: str) -> None:
    listed = [part for part in value.split(",") if part not in ("", "NIL")]
    options.given["export"] = next((word for word in ("NONE", "ALL") if word in listed), "SOME")
    options.set(*_repeated("-e", [part for part in listed if part not in ("NONE", "ALL")]), key="export")


def _begin(options: SbatchOptions, value: str) -> None:
    now = dt.datetime.now().astimezone()
    moment = parse_moment(value, now, future=True)
    if moment is None:
        raise UsageError(f"--begin={value}: write now+1hour, 16:00, or 2026-01-31T12:00:00")
    if moment > now:
        options.set("--earliest-start-time", f"{(moment - now).total_seconds():.0f}s")


def _image(options: SbatchOptions, value: str) -> None:
    """Takes an image as Pyxis has it, in which # may stand after the registry."""
    if value.startswith(("/", "./")):
        raise UnsupportedError(
            f"--container-image={value}: an image comes from a registry, as nvcr.io/nvidia/pytorch:24.05-py3"
        )
    options.set("--image", value.removeprefix("docker://").replace("#", "/", 1))


def _container_mounts(options: SbatchOptions, value: str) -> None:
    """Takes mounts as Pyxis has them: `SRC[:DST[:FLAGS]]`, separated by commas."""
    mounts = list[str]()
    for part in filter(None, value.split(",")):
        source, _, rest = part.partition(":")
        target, _, flags = rest.partition(":")
        writable = "" if "ro" in flags.split("+") else ":rw"
        mounts.append(f"{source}:{target or source}{writable}")
    options.set(*_repeated("--mount", mounts), key="container-mounts")


def _agents(options: SbatchOptions, value: str) -> None:
    options.set(*_repeated("--agent", expand(value, "--nodelist")), "--strict-agents", key="nodelist")


def _constraint(options: SbatchOptions, value: str) -> None:
    if not value:
        return
    if value not in _ARCHITECTURES:
        raise UnsupportedError(f"--constraint={value}: {NO_FEATURES}")
    options.set("--arch", _ARCHITECTURES[value])


def _partition(options: SbatchOptions, value: str) -> None:
    options.set("--group", value.partition(",")[0].strip())


def _priority(options: SbatchOptions, value: str) -> None:
    if not value.isdecimal() or int(value) > _HIGHEST_PRIORITY:
        raise UnsupportedError(f"--priority={value}: priorities are 0 to {_HIGHEST_PRIORITY}")
    options.set("--priority", value)


def _nice(options: SbatchOptions, value: str) -> None:
    """Takes a niceness of Slurm, by default 100: each hundred is one less of our priority."""
    try:
        nice = int(value or _NICE_STEP)
    except ValueError:
        raise UsageError(f"--nice={value}: must be a number") from None
    if nice < 0:
        raise UnsupportedError(f"--nice={value}: --priority raises a priority, as far as you may")
    if nice:
        options.set("--priority", str(max(0, _DEFAULT_PRIORITY - -(-nice // _NICE_STEP))))


def _plain(option: str) -> Callable[[SbatchOptions, str], None]:
    return lambda options, value: options.set(option, value)


def _flag(*arguments: str) -> Callable[[SbatchOptions, str], None]:
    return lambda options, _: options.set(*arguments)


def _array(options: SbatchOptions, value: str) -> None:
    options.array = value


_READERS: Mapping[str, Callable[[SbatchOptions, str], None]] = {
    "job-name": _name,
    "time": _time,
    "signal": _signal,
    "partition": _partition,
    "account": _plain("--project"),
    "array": _array,
    "dependency": _dependency,
    "quiet": _flag("--quiet"),
    "hold": _flag("--hold"),
    "begin": _begin,
    "nodelist": _agents,
    "requeue": _flag("--retry", "3"),
    "wait": _flag("--wait"),
    "test-only": _flag("--dry-run"),
    "comment": lambda options, value: options.set("--label", f"comment={value}", key="comment"),
    "container-image": _image,
    "container-mounts": _container_mounts,
    "export": _export,
    "constraint": _constraint,
    "priority": _priority,
    "nice": _nice,
}
