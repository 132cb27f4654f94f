"""`retinue exec` and `attach`: a command, or a shell, in a running kernel."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from retinue.client.command.shell import completed_names, terminal
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.signals import handled
from retinue.client.command.shell.variables import env_options
from retinue.client.errors import CallError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from retinue.client.kernel.attachment import Attachment
    from retinue.client.sessions import Sessions

_PASSED_ON = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGQUIT: "QUIT"}


# With which a shell ends when there is no such program.
_NOT_EXECUTABLE, NOT_FOUND = 126, 127


class _Exec(click.Command):
    """Options may follow the session when `--` says where the command begins;
    else the command begins after the session.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; called with all that follows the name of the command."""
        ctx.allow_interspersed_args = "--" in args
        return super().parse_args(ctx, args)


@click.command("exec", cls=_Exec)
@click.option("-i", "--stdin", "interactive", is_flag=True, help="Pass standard input to COMMAND.")
@click.option("-t", "--tty", is_flag=True, help="Run COMMAND on a terminal of this one's size.")
@click.option("-d", "--detach", is_flag=True, help="Run COMMAND in the background, without input and output.")
@click.option("-k", "--kernel", default="", help="Hostname of the kernel.  [default: main1]")
@env_options
@click.option(
    "-w", "--workdir", default="", help="Working directory, absolute.  [default: that of the kernel's command]"
)
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@pass_connection
@asynchronous
async def exec_command(
    connection: Connection,
    *,
    interactive: bool,
    tty: bool,
    detach: bool,
    kernel: str,
    env: dict[str, str],
    workdir: str,
    session: str,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND in a kernel of a running session, as the kernel's user, and end with its exit code.

    Without COMMAND, run a shell, on a terminal if this is one. When the command or this program ends, all processes
    that it started end, too; on a terminal, those that have left it live on, as after a login by ssh (tmux, `nohup`,
    `setsid`). With --detach, the command runs to its own end, or to that of the session.

    \b
      retinue exec my-session -- nvidia-smi
      retinue exec -it my-session -k sub1
      tar c . | retinue exec -i my-session -- tar x
      retinue exec -d my-session -- sh -c 'exec python3 watch.py >watch.log 2>&1'
    """
    if detach and (interactive or tty or not command):
        raise click.UsageError("--detach needs a COMMAND, and has neither -i nor -t: it runs without input and output")
    if not command and not interactive and not tty:
        interactive, tty = True, _is_terminal()
    async with connection.client() as client:
        code = await run_attached(
            client.sessions,
            session,
            command,
            kernel,
            interactive=interactive,
            tty=tty,
            environment=env,
            working_directory=workdir,
            detached=detach,
        )
    return hinted(code, command, f"retinue exec {safe(session)} --")


@click.command("attach")
@click.option("-k", "--kernel", default="", help="Hostname of the kernel.  [default: main1]")
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def attach_command(connection: Connection, *, kernel: str, session: str) -> int:
    """Open a shell in a running session, and end with its exit code.

    The same as `retinue exec -it SESSION`: a new shell beside the session's own command, which continues when the shell
    ends, as do processes that have left the shell (tmux, `nohup`, `setsid`). Several shells may be open at once.
    `retinue logs -f` prints the output of the session's own command.
    """
    async with connection.client() as client:
        return await run_attached(client.sessions, session, kernel=kernel, interactive=True, tty=_is_terminal())


def _is_terminal() -> bool:
    return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())


def hinted(code: int, command: Sequence[str], how: str = "retinue run --") -> int:
    """Returns the exit code; if a command was not found that is a whole command line in one word, it says so."""
    if code in (_NOT_EXECUTABLE, NOT_FOUND) and len(command) == 1 and " " in (line := command[0].strip()):
        click.echo(
            f"retinue: {safe(repr(line))} is one word, the name of a program: did you mean `{how} {safe(line)}`, "
            f"or `{how} sh -c {safe(shlex.quote(line))}`?",
            err=True,
        )
    return code


async def run_attached(
    sessions: Sessions,
    session: str,
    command: Sequence[str] = (),
    kernel: str = "",
    *,
    interactive: bool,
    tty: bool,
    environment: Mapping[str, str] | None = None,
    working_directory: str = "",
    detached: bool = False,
) -> int:
    """Runs a command (default: a shell) in a kernel (default `main1`) with this program's standard streams; returns its
    exit code. `interactive` passes standard input on, `tty` runs it on a terminal, and what leaves that lives on. One
    that is `detached` is only started. Raises CallError.
    """
    environment = environment or {}
    size = terminal.size() if tty else None
    attachment = sessions.attach(
        session,
        command,
        kernel,
        terminal=size,
        environment={**terminal.kind(), **environment} if tty else environment,
        working_directory=working_directory,
        keep_processes=tty,
        detached=detached,
    )
    with terminal.handed_over(sys.stdin.fileno()) if tty and interactive else contextlib.nullcontext():
        return await _attend(attachment, size, interactive=interactive, detached=detached)


async def _attend(
    attachment: Attachment, size: tuple[int, int] | None, *, interactive: bool, detached: bool = False
) -> int:
    """Returns the exit code; `size` is the one that the command's terminal is started with,
    None for a command without.
    """
    tty = size is not None
    async with attachment:
        tasks: set[asyncio.Task[None]] = set()

        def send(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
            task = asyncio.ensure_future(_suppressed(step()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        # On a terminal without -i, nothing is said at all: its end would be one more key.
        if not detached and (interactive or not tty):
            send(lambda: _pass_on(attachment, interactive=interactive))
        with _handlers(attachment, send, tty=tty):
            # Nothing was notified of a change while the connection was made.
            if tty and (now := terminal.size()) != size:
                send(lambda: attachment.resize(*now))
            async for piece in attachment:
                await asyncio.to_thread(_write, piece.data, errors=piece.errors)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return attachment.exit_code or 0


async def _suppressed(step: Coroutine[Any, Any, None]) -> None:
    """Suppresses the end of the stream: reading from it reports how it ended."""
    with contextlib.suppress(CallError, asyncio.InvalidStateError):
        await step


async def _pass_on(attachment: Attachment, *, interactive: bool) -> None:
    if interactive:
        async for data in terminal.pieces(sys.stdin.fileno()):
            await attachment.write(data)
    await attachment.end_input()


@contextlib.contextmanager
def _handlers(
    attachment: Attachment, send: Callable[[Callable[[], Coroutine[Any, Any, None]]], None], *, tty: bool
) -> Iterator[None]:
    """Passes signals and sizes on. A second interrupt is meant for this program."""
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()

    def pass_on(number: signal.Signals) -> None:
        send(lambda: attachment.signal(_PASSED_ON[number]))
        loop.remove_signal_handler(number)
        if me is not None:
            loop.add_signal_handler(number, me.cancel)

    handlers: dict[signal.Signals, Callable[[], object]] = {
        number: functools.partial(pass_on, number) for number in _PASSED_ON
    }
    if tty:
        handlers[signal.SIGWINCH] = lambda: send(lambda: attachment.resize(*terminal.size()))
    with handled(handlers):
        yield


def _write(data: bytes, *, errors: bool) -> None:
    stream = sys.stderr.buffer if errors else sys.stdout.buffer
    stream.write(data)
    stream.flush()
