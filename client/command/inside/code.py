"""`retinue code`: a file, or lines as they are typed, run in a session."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.client.command.inside.code_prompt import conversation, history, read_code
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.text_files import read_file
from retinue.client.command.show.code_output import Output
from retinue.client.command.show.terminal_text import raw_option
from retinue.types.v1 import code_pb2

LANGUAGES = {".py": "python", ".sh": "bash", ".r": "r", ".jl": "julia", ".js": "javascript", ".go": "go"}
"""By the end of a file's name."""


class _Code(click.Group):
    """A group whose command may be left out: then what follows is the session to talk to."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves the command; called with all that follows the name of the group."""
        if args and args[0] not in self.commands:
            args = ["talk", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before a session are those of talking to it."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["talk", *args]
        return super().parse_args(ctx, args)


_LANGUAGE = click.option(
    "-l", "--language", default="", help="Language with a Jupyter kernel in the session.  [default: python]"
)
_SAVE = click.option(
    "--save-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    show_default="here",
    help="Save images and pages that the code shows here.",
)


@click.group("code", cls=_Code)
def code_command() -> None:
    """Run code in an interactive session, in Python or any language it has a Jupyter kernel for.

    Variables are kept from run to run, as long as the session. Images and pages that the code shows are saved to files.

    \b
      retinue code my-session
      retinue code run plot.py my-session
      retinue code interrupt my-session
    """


@code_command.command("talk")
@_LANGUAGE
@_SAVE
@raw_option
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
def talk_command(connection: Connection, *, language: str, save_dir: Path, session: str, raw: bool) -> int:
    """Run lines as they are typed: history with the arrow keys, names with tab, Ctrl-C interrupts, Ctrl-D ends.

    An incomplete line continues on the next one, and a block continues until an empty line.
    """
    output = Output(save_dir, raw=raw)
    with conversation(connection, session, language) as talk, history(talk):
        while (text := read_code()) is not None:
            if text.strip():
                talk.run(text, output)
    return ExitCode.OK


@code_command.command("run")
@_LANGUAGE
@_SAVE
@raw_option
@click.option("--timeout", callback=options.positive_span, metavar="TIME", help="Interrupt the code after this time.")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
def run_command(
    connection: Connection,
    *,
    language: str,
    save_dir: Path,
    timeout: float | None,
    file: Path,
    session: str,
    raw: bool,
) -> int:
    """Run FILE (`-`: standard input) in a running session, and end with 0, or 1 when the code raised an error."""
    _, text = read_file(str(file))
    language = language or LANGUAGES.get(file.suffix.lower(), "")
    with conversation(connection, session, language) as talk:
        finished = talk.run(text, Output(save_dir, raw=raw), timeout=timeout)
    return ExitCode.INTERRUPTED if finished.status == code_pb2.CODE_STATUS_INTERRUPTED else finished.exit_code


@code_command.command("interrupt")
@_LANGUAGE
@click.option("--force", is_flag=True, help="End the process that runs the code; variables are lost.")
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def interrupt_command(connection: Connection, *, language: str, force: bool, session: str) -> int:
    """Interrupt what runs now, no matter who started it, for instance after the terminal it
    was started from is gone.
    """
    async with connection.client() as client, client.sessions.code(session, language) as code:
        await code.interrupt(force=force)
        await code.finish()
    return ExitCode.OK
