"""`retinue srun`: runs a command in a session of its own, or in one that runs, with the grammar of Slurm's srun."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from retinue.client.command.inside.exec import exec_command
from retinue.client.command.sessions import submit
from retinue.client.command.sessions.run import run_command
from retinue.client.command.slurm.finding import parse_id
from retinue.client.command.slurm.slurm_command import OwnGrammarCommand, version_option
from retinue.client.command.slurm_scripts import sbatch_grammar
from retinue.client.command.slurm_scripts.sbatch_meaning import SbatchOptions, UnsupportedError
from retinue.client.command.slurm_scripts.submitting_machine import exported
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.client.command.slurm_scripts.sbatch_grammar import OptionValue

# Options of srun alone, which go to the srun in the session; those with a value, and those without.
_OF_STEP = {"label": False, "unbuffered": False, "kill-on-bad-exit": False, "exact": False, "overlap": False}
_OF_STEP |= {"mpi": True, "cpu-bind": True}
_LETTERS_OF_STEP = {"l": "label", "u": "unbuffered", "K": "kill-on-bad-exit"}
# Of sbatch, this option has no value.
_WAIT = re.compile(r"(?:-W|--wait=)(\d+)")
_OWN = {"pty": False, "jobid": True, "immediate": False, "no-shell": False, "x11": False}
_LEFT_OUT = ("immediate", "x11")


@dataclass(slots=True)
class Step:
    """What the words of srun ask for."""

    options: list[OptionValue] = field(default_factory=list)
    of_step: list[str] = field(default_factory=list)
    pty: bool = False
    job: str = ""
    command: Sequence[str] = ()
    wrong: list[str] = field(default_factory=list)


def parse(words: Sequence[str]) -> Step:
    """Returns what words of srun ask for, with what is wrong."""
    rest, step = list(words), Step()
    own = {**submit.own_options(), **_OF_STEP, **_OWN}
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        letter = rest[0][1:2]
        if letter in _LETTERS_OF_STEP and not rest[0].startswith("--"):
            name = _LETTERS_OF_STEP[letter]
            rest[0:1] = [f"--{name}", *([f"-{rest[0][2:]}"] if rest[0][2:] else [])]
        if found := _WAIT.fullmatch(rest[0]):
            step.of_step.append(f"--wait={found[1]}")
            del rest[0]
            continue
        try:
            _take(step, sbatch_grammar.take(rest, own))
        except UsageError as error:
            step.wrong.append(str(error))
    step.command = rest[1:] if rest[:1] == ["--"] else rest
    if not step.command:
        step.wrong.append("No command given to execute.")
    return step


def _take(step: Step, given: OptionValue) -> None:
    if given.name in _OF_STEP:
        step.of_step.append(f"--{given.name}" + (f"={given.value}" if _OF_STEP[given.name] else ""))
    elif given.name == "pty":
        step.pty = True
    elif given.name == "jobid":
        step.job = given.value
    elif given.name in ("output", "error", "input", "open-mode"):
        raise UnsupportedError(f"--{given.name}: this machine's shell has > FILE and < FILE; an srun in a job has it")
    elif given.name in ("array", "wrap", "parsable", "test-only"):
        raise UnsupportedError(f"--{given.name} is sbatch's alone")
    elif given.name not in _LEFT_OUT:
        step.options.append(given)


def arguments(step: Step, environment: Mapping[str, str], *, piped: bool) -> list[str]:
    """Returns the words of `retinue run` for a step in a session of its own; `piped` says that its standard input is no
    terminal and may have something for the command. Raises UsageError with all that is wrong.
    """
    options, wrong = SbatchOptions(submit.own_options()), list(step.wrong)
    for given in (*sbatch_grammar.from_environment(_srun_variables(environment)), *step.options):
        wrong += [str(outcome) for outcome in options.take(given) if isinstance(outcome, UsageError)]
    if wrong:
        raise UsageError("\n".join(wrong))
    words = options.arguments()
    tasks = options.tasks()
    sent = exported(environment, image="--image" in words) if options.given.get("export", "ALL") == "ALL" else {}
    words = [*(word for name, value in sent.items() for word in ("-e", f"{name}={value}")), *words]
    command = list(step.command)
    if tasks is not None and tasks.number > 1:
        words += ["-e", f"SLURM_NTASKS={tasks.number}"]
        if step.pty:
            raise UsageError("--pty is for one task")
        command = ["srun", *step.of_step, "-n", str(tasks.number), *command]
    name = next((words[at + 1] for at, word in enumerate(words) if word == "--job-name"), "")
    if name:
        at = words.index("--job-name")
        words[at : at + 2] = ["--label", f"slurm.job-name={name}"]
    kind = ["-it"] if step.pty else ["-i"] if piped else []
    return [*kind, *(() if "--quiet" in words else ("--quiet",)), *words, "--", *command]


def _srun_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that srun reads, by the names that sbatch has for them."""
    names = {
        "SLURM_PARTITION": "SBATCH_PARTITION",
        "SLURM_ACCOUNT": "SBATCH_ACCOUNT",
        "SLURM_TIMELIMIT": "SBATCH_TIMELIMIT",
    }
    return {ours: environment[name] for name, ours in names.items() if name in environment}


@click.command(
    "srun",
    cls=OwnGrammarCommand,
    options_metavar="[OPTIONS OF SRUN]",
)
@version_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@click.pass_context
def srun_command(context: click.Context, words: tuple[str, ...]) -> int:
    """Run COMMAND in a session of its own, as Slurm's srun does outside of a job, and end with its exit code.

    This is `retinue run` with srun's grammar: it takes the options of `retinue sbatch`, and of srun --pty, which gives
    COMMAND a terminal, --label, --unbuffered and --kill-on-bad-exit. With several tasks, the srun in the session starts
    COMMAND once for each. With --jobid, COMMAND runs in a running session, as by `retinue exec`.
    """
    step = parse(words)
    if step.job:
        if step.wrong:
            raise UsageError("\n".join(step.wrong))
        if step.options:
            names = ", ".join(f"--{given.name}" for given in step.options)
            raise UsageError(f"{names}: --jobid cannot change what the session has")
        if parse_id(step.job) is None:
            raise UsageError(f"--jobid={step.job}: Invalid job id specified")
        flags = ["-it"] if step.pty else ["-i"] if _is_piped() else []
        return _call(exec_command, context, [*flags, step.job, "--", *step.command])
    return _call(run_command, context, arguments(step, os.environ, piped=_is_piped()))


def _call(command: click.Command, context: click.Context, words: list[str]) -> int:
    """Runs another command in place of this one; returns its exit code."""
    with command.make_context("srun", words, parent=context.parent) as inner:
        code = command.invoke(inner)
    return code if isinstance(code, int) else 0


def _is_piped() -> bool:
    """Returns whether standard input is a pipe, a file or a socket, which may have something for the command."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
