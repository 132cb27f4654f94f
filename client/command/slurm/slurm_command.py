"""How Slurm's commands read their words and end: names of options may be cut, and what goes wrong is code 1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

import click

from retinue.client.command.shell.printable import safe
from retinue.client.errors import CallError, RetinueError

if TYPE_CHECKING:
    from collections.abc import Sequence

LEFT_OUT = "Accepted and ignored."
"""The help of options that change nothing here."""

_LONGEST_CODE = 255


class SlurmCommand(click.Command):
    """A command that is called as Slurm's. `optional` are long options whose value may be left out, with the value that
    they have then.
    """

    optional: dict[str, str]

    def __init__(self, *arguments: Any, optional: dict[str, str] | None = None, **options: Any) -> None:
        """Takes what click's commands take; `-h` is no help, as it is `--noheader` of some."""
        super().__init__(*arguments, **options)
        self.optional = optional or {}
        self.context_settings: dict[str, Any] = {"help_option_names": ["--help"], **self.context_settings}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Reads the words; wrong ones end the program as Slurm's commands do."""
        try:
            return super().make_context(info_name, self.complete(args), parent, **extra)
        except click.UsageError as error:
            fail(self.name or "", [error.format_message()])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; errors end it as Slurm's commands do."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            fail(self.name or "", [error.format_message()])
        except RetinueError as error:
            fail(self.name or "", lines_of(error))

    def complete(self, args: Sequence[str]) -> list[str]:
        """Returns the words with the whole names of options that are cut, and the values that are left out."""
        names = [name for item in self.params for name in item.opts if name.startswith("--")] + ["--help"]
        found = list[str]()
        for position, word in enumerate(args):
            if word == "--":
                return [*found, *args[position:]]
            name, equals, value = word.partition("=")
            if name.startswith("--") and name not in names:
                near = [one for one in names if one.startswith(name)]
                name = near[0] if len(near) == 1 else name
            if not equals and name in self.optional:
                equals, value = "=", self.optional[name]
            found.append(f"{name}{equals}{value}")
        return found


class OwnGrammarCommand(SlurmCommand):
    """A command whose words a grammar of Slurm's own reads, which completes its options; those of a script, or of a
    command, stay.
    """

    allow_interspersed_args = False
    ignore_unknown_options = True

    def complete(self, args: Sequence[str]) -> list[str]:
        """Returns the words as they are."""
        return list(args)


def lines_of(error: RetinueError) -> list[str]:
    """Returns what an error says, in lines."""
    return error.lines if isinstance(error, CallError) else str(error).splitlines()


NO_SUCH_JOB = "slurm_load_jobs error: Invalid job id specified"
"""What squeue and scontrol say of a job that there is not."""


def fail(name: str, lines: Sequence[str]) -> NoReturn:
    """Prints errors as Slurm's commands do, and ends with 1, or with what `$SLURM_EXIT_ERROR` says; without a name the
    lines are whole.
    """
    for line in lines:
        click.echo(f"{name}: error: {safe(line)}" if name else safe(line), err=True)
    code = os.environ.get("SLURM_EXIT_ERROR", "")
    raise click.exceptions.Exit(int(code) if code.isdecimal() and int(code) <= _LONGEST_CODE else 1)


def _version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # click's
    if value:
        # The version of Slurm whose options and words these are.
        from importlib import metadata  # noqa: PLC0415  # other calls do without

        click.echo(f"slurm 22.05.8 (retinue {metadata.version('retinue')})")
        context.exit()


version_option = click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
