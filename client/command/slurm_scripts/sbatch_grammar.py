"""The options of sbatch: their names, letters and values, and what becomes of each of them here. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Value(Enum):
    """Whether an option has a value: `--hold`, `--time=5`, `--nice[=5]`."""

    NONE = "none"
    REQUIRED = "required"
    OPTIONAL = "optional"


class Treatment(Enum):
    """What becomes of an option: it is taken, left out with a warning, or refused."""

    TAKEN = "taken"
    IGNORED = "left out"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of sbatch. `text` says what stands for it here, or why it is left out or refused."""

    name: str
    letter: str
    value: Value
    treatment: Treatment
    text: str


@dataclass(frozen=True, slots=True)
class OptionValue:
    """An option with its value, empty without one."""

    name: str
    value: str


class UnknownOptionError(UsageError):
    """Neither sbatch nor `retinue submit` has an option of that name."""


_FILE = "a file on a writable mount, with Slurm's patterns; without it, output is in `retinue logs`"
_MAIL = "webhooks of the session say when it ends"
_PINNED = "the agents choose cores and devices"
_SPEED = "it changes speed, not results"
NO_FEATURES = "agents have no features: use resource groups (--partition) or --nodelist"
"""Why there are no constraints."""
HETEROGENEOUS = (
    "kernels of a job have one size, but for main1: #RETINUE --main-slots cpu=8 --sub-slots cpu=1 --size 17; "
    "parts that need not run together are jobs of their own"
)
"""Why a job has one part."""
# Words between the parts of a heterogeneous job.
_PARTS = frozenset({"hetjob", "packjob", ":"})


def _options(treatment: Treatment, value: Value, *rows: tuple[str, str]) -> Iterator[Option]:
    """Yields options of one kind, each written `name` or `name/letter`."""
    for names, text in rows:
        name, _, letter = names.partition("/")
        yield Option(name, letter, value, treatment, text)


OPTIONS: tuple[Option, ...] = (
    *_options(
        Treatment.TAKEN,
        Value.REQUIRED,
        ("account/A", "`--project`"),
        ("array/a", "a session for each index, all in one request"),
        ("begin/b", "`--earliest-start-time`"),
        ("chdir/D", "`--workdir`: a directory in the kernel"),
        ("comment", "label `comment`"),
        ("constraint/C", "an architecture, such as `x86_64`: `--arch`; all else is refused"),
        ("container-image", "`--image`; also with `#` after the registry, as Pyxis has it"),
        ("container-mounts", "`--mount` for each of a list as Pyxis has it, writable but for those with `ro`"),
        ("cpus-per-gpu", "`--slots cpu=`, times the GPUs of a kernel"),
        ("cpus-per-task/c", "`--slots cpu=`, times the tasks of a kernel"),
        ("dependency/d", "`--depends-on`, `--after`, `--after-failure`, `--after-label`, `--depends-on-each`; no `?`"),
        ("distribution/m", "how srun in the job lays tasks out"),
        ("error/e", _FILE),
        ("exclude/x", "`--agent` for each other agent of the group that there is now, with `--strict-agents`"),
        ("export", "`--env`: of the submitting environment what is named, `ALL` or `NONE`"),
        ("export-file", "`--env`: a file of `NAME=VALUE`, each ended by NUL"),
        ("gpus/G", "`--slots cuda.device=`, divided among the kernels"),
        ("gpus-per-node", "`--slots cuda.device=` of each kernel"),
        ("gpus-per-task", "`--slots cuda.device=`, times the tasks of a kernel"),
        ("gres", "`--slots cuda.device=` for `gpu:N` without a kind; all else is refused"),
        ("input/i", "a file in the kernel"),
        ("job-name/J", "label `slurm.job-name`; the session's name begins with it"),
        ("mem", "`--slots mem=` of each kernel"),
        ("mem-per-cpu", "`--slots mem=`, times the processors of a kernel"),
        ("mem-per-gpu", "`--slots mem=`, times the GPUs of a kernel"),
        ("nodefile/F", "`--nodelist` with the names in a file"),
        ("nodelist/w", "`--agent` for each, with `--strict-agents`"),
        ("nodes/N", "`--size`: a kernel for each node, which holds the tasks of that node"),
        ("ntasks/n", "`--size`: without `--nodes` a kernel for each task, unless amounts for a node are given"),
        ("ntasks-per-gpu", "`--ntasks`, times the GPUs"),
        ("ntasks-per-node", "the tasks of each kernel"),
        ("open-mode", "whether output is appended to its files, or what they have is cut off, as it is by default"),
        ("output/o", _FILE),
        ("partition/p", "`--group`; of several the first"),
        ("priority", "`--priority`, 0 to 100"),
        ("signal", "`--signal`: with `B:` to the script, else to what it has started"),
        ("time/t", "`--time-limit`"),
        ("tmp", "`--slots disk=` of each kernel, for its own directory: `/tmp` is memory"),
        ("wrap", "the command line that runs in place of a script"),
    ),
    *_options(
        Treatment.TAKEN,
        Value.NONE,
        ("hold/H", "`--hold`"),
        ("ignore-unknown", "Retinue's own: what is refused is left out with a warning"),
        ("overcommit/O", "srun in the job runs more tasks than there are processors"),
        ("parsable", "print the number alone"),
        ("quiet/Q", "print no warnings, and not what was submitted"),
        ("requeue", "`--retry 3`: again when it was lost with its node"),
        ("test-only", "`--dry-run`"),
        ("wait/W", "`--wait`: end with the job's exit code"),
    ),
    *_options(Treatment.TAKEN, Value.OPTIONAL, ("nice", "`--priority` below the default of 10; none below 0")),
    *_options(
        Treatment.IGNORED,
        Value.REQUIRED,
        ("acctg-freq", "agents measure by themselves"),
        ("cluster-constraint", "there is one cluster"),
        ("clusters/M", "there is one cluster"),
        ("container-env", "variables go along by --export"),
        ("cores-per-socket", _PINNED),
        ("cpu-bind", _PINNED),
        ("cpu-freq", _SPEED),
        ("delay-boot", "agents are not booted for a job"),
        ("extra-node-info/B", _PINNED),
        ("gpu-bind", _PINNED),
        ("gpu-freq", _SPEED),
        ("gres-flags", _PINNED),
        ("hint", _PINNED),
        ("mail-type", _MAIL),
        ("mail-user", _MAIL),
        ("mcs-label", "projects and roles say who may see a job"),
        ("mem-bind", _PINNED),
        ("network", "every session has a private network"),
        ("ntasks-per-core", _PINNED),
        ("ntasks-per-socket", _PINNED),
        ("power", _SPEED),
        ("prefer", NO_FEATURES),
        ("profile", "retinue top and retinue get show what a job uses"),
        ("qos/q", "quotas and the resource group say what a job may use"),
        ("sockets-per-node", _PINNED),
        ("switches", "the resource group's strategy decides"),
        ("threads-per-core", _PINNED),
        ("time-min", "the time limit is that of --time"),
        ("wait-all-nodes", "all kernels start together"),
        ("wckey", "jobs are accounted to projects"),
    ),
    *_options(
        Treatment.IGNORED,
        Value.NONE,
        ("container-mount-home", "home directories of submitting machines are not mounted: --container-mounts"),
        ("container-writable", "containers are writable"),
        ("contiguous", "the resource group's strategy decides"),
        ("ignore-pbs", "lines of #PBS do not count"),
        ("no-container-mount-home", "home directories of submitting machines are not mounted"),
        ("no-container-remap-root", "containers run as the user of their image"),
        ("no-requeue", "a job runs once unless it asks for retries"),
        ("spread-job", "the resource group's strategy decides"),
        ("use-min-nodes", "there are as many kernels as --nodes says"),
        ("verbose/v", "use retinue -v"),
    ),
    *_options(
        Treatment.IGNORED,
        Value.OPTIONAL,
        ("get-user-env", "variables of the submitting shell go along by --export"),
        ("no-kill/k", "a job ends with any of its nodes"),
        ("oversubscribe/s", "kernels share nodes by their amounts"),
        ("propagate", "limits of the submitting shell do not go along"),
    ),
    *_options(
        Treatment.REFUSED,
        Value.REQUIRED,
        ("batch", NO_FEATURES),
        ("bb", "there are no burst buffers: use --mount"),
        ("bbf", "there are no burst buffers: use --mount"),
        ("container", "an image comes from a registry: --container-image"),
        ("container-name", "a container ends with its kernel: --container-image"),
        ("container-save", "a container ends with its kernel: build an image"),
        ("core-spec/S", "no cores are reserved"),
        ("deadline", "a job waits until it ends: retinue rm, or the group's pending timeout"),
        ("gid", "a job runs as its kernel's user"),
        ("gpus-per-socket", "use --gpus-per-node"),
        ("kill-on-invalid-dep", "a job whose dependency fails is cancelled"),
        ("licenses/L", "an agent's own slots stand for licences: #RETINUE --slots NAME=1"),
        ("mincpus", "use --cpus-per-task"),
        ("reservation", "nothing is reserved by name: use a resource group (--partition)"),
        ("thread-spec", "no cores are reserved"),
        ("uid", "a job is its submitter's: retinue --token"),
    ),
    *_options(
        Treatment.REFUSED,
        Value.NONE,
        ("container-remap-root", "containers run as the user of their image"),
        ("reboot", "agents are not booted for a job"),
    ),
    *_options(Treatment.REFUSED, Value.OPTIONAL, ("exclusive", "ask for all that a node has: --cpus-per-task, --mem")),
)
BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}
_BY_LETTER: Mapping[str, Option] = {option.letter: option for option in OPTIONS if option.letter}
# Variables that are not called by their option.
_VARIABLES = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_TIMELIMIT": "time",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
    "SBATCH_REQ_SWITCH": "switches",
    **{f"SBATCH_{option.name.upper().replace('-', '_')}": option.name for option in OPTIONS},
}


def long_name(letter: str) -> str:
    """Returns the long name of a short option of sbatch; empty if it has none of that letter."""
    return _BY_LETTER[letter].name if letter in _BY_LETTER else ""


def take(rest: list[str], own: Mapping[str, bool]) -> OptionValue:
    """Takes one option off the words of a command line: one of sbatch, of which a long name may be cut as long as it is
    unique, or one of `own`, long names with whether they have a value. Raises UsageError.
    """
    word = rest.pop(0)
    if word.startswith("--") and len(word) > len("--"):
        typed, equals, value = word[2:].partition("=")
        name = _complete(typed, own)
        kind = BY_NAME[name].value if name in BY_NAME else Value.REQUIRED if own[name] else Value.NONE
        if equals and kind is Value.NONE:
            raise UsageError(f"--{name} has no value")
        return OptionValue(name, value if equals or kind is not Value.REQUIRED else _next(f"--{name}", rest))
    if len(word) > 1 and word[0] == "-" and word[1] != "-":
        option = _BY_LETTER.get(word[1])
        if option is None:
            raise UnknownOptionError(f"-{word[1]} is no option")
        if option.value is Value.NONE:
            if word[2:]:
                # Several letters in one word.
                rest.insert(0, f"-{word[2:]}")
            return OptionValue(option.name, "")
        return OptionValue(
            option.name, word[2:] or ("" if option.value is Value.OPTIONAL else _next(f"-{word[1]}", rest))
        )
    raise UsageError(f"{word}: {HETEROGENEOUS}" if word in _PARTS else f"{word!r} is not an option")


def from_environment(environment: Mapping[str, str]) -> list[OptionValue]:
    """Returns the options that variables stand for: `SBATCH_TIMELIMIT`, `SBATCH_PARTITION` and others."""
    return [
        OptionValue(name, "" if BY_NAME[name].value is Value.NONE else environment[variable])
        for variable, name in _VARIABLES.items()
        if variable in environment
    ]


def _complete(typed: str, own: Iterable[str]) -> str:
    if typed in BY_NAME or typed in own:
        return typed
    if typed.replace("_", "-") in BY_NAME:
        return typed.replace("_", "-")
    found = [name for name in BY_NAME if typed and name.startswith(typed)]
    if len(found) != 1:
        several = f": it may be {' or '.join(f'--{name}' for name in found)}" if found else ""
        raise UnknownOptionError(f"--{typed} is no option{several}")
    return found[0]


def _next(name: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"{name} needs a value")
    return rest.pop(0)
