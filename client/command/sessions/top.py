"""`retinue top`: what running kernels use, now."""

from __future__ import annotations

import sys
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.terminal import in_foreground
from retinue.client.command.shell.text import size
from retinue.client.command.show.output import Column, output_option, print_list, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.v1 import kernel_service_pb2 as pb

MISSING = "-"
_CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class Line:
    """A kernel now and one look before, if there was one."""

    now: pb.KernelStats
    before: pb.KernelStats | None

    def rate(self, name: str) -> float | None:
        """Returns the growth of a counter per second; None when that is unknown, or the counter was reset."""
        if self.before is None or not _known(self.now, name) or not _known(self.before, name):
            return None
        seconds = (self.now.usage.sample_time.ToNanoseconds() - self.before.usage.sample_time.ToNanoseconds()) / 1e9
        grown = _number(self.now, name) - _number(self.before, name)
        return grown / seconds if seconds > 0 and grown >= 0 else None


def _number(stats: pb.KernelStats, name: str) -> float:
    return stats.usage.cpu_time.ToNanoseconds() / 1e9 if name == "cpu_time" else float(getattr(stats.usage, name))


def _known(stats: pb.KernelStats, name: str) -> bool:
    return stats.usage.HasField(name)  # type: ignore[arg-type]  # a name of a field


@click.command("top")
@click.option("-k", "--kernel", default="", help="Hostname of one kernel of SESSION.  [default: all]")
@click.option("--interval", callback=options.span, default="2s", show_default=True, metavar="TIME", help="1s to 1h.")
@click.option("--once", is_flag=True, help="Measure over one interval, print, and exit.")
@output_option
@click.argument("session", shell_complete=completed_names.sessions, default="")
@pass_connection
@asynchronous
async def top_command(
    connection: Connection, *, session: str, kernel: str, interval: float, once: bool, output: str
) -> None:
    """Show the usage of kernels, of SESSION or of all running sessions, live.

    CPU is in percent of one processor. A value that a node does not measure, or not yet, is `-`. With -o json, each
    measurement is one message of the API, and --once prints the first.
    """
    if kernel and not session:
        raise click.UsageError("--kernel needs SESSION")
    live = output in ("table", "wide") and not once and sys.stdout.isatty()
    before: dict[tuple[str, str], pb.KernelStats] = {}
    async with connection.client() as client:
        looks = client.sessions.stats(session, kernel, interval=interval)
        async with aclosing(looks):
            first = True
            async for look in looks:
                lines = [Line(now, before.get((now.session_id, now.hostname))) for now in look.kernels]
                before = {(now.session_id, now.hostname): now for now in look.kernels}
                # Rates take two looks.
                if not (first and once and look.kernels and output in ("table", "wide")):
                    _show(output, look, lines, live=live)
                    if once:
                        return
                first = False


def _show(output: str, look: pb.StreamStatsResponse, lines: Sequence[Line], *, live: bool) -> None:
    if live and not in_foreground():
        # Looks that cannot be shown now are not missed later.
        return
    if live:
        text = "\n".join(rows_of(lines, COLUMNS, wide=output == "wide"))
        click.echo(f"{_CLEAR}{text}")
    else:
        print_list(output, look, lines, COLUMNS, lambda line: f"{line.now.session_name}/{line.now.hostname}")


def _percent(rate: float | None) -> str:
    return MISSING if rate is None else f"{100 * rate:.1f}%"


def _held(line: Line, name: str) -> float | None:
    return float(getattr(line.now.usage, name)) if _known(line.now, name) else None


def _memory(line: Line) -> str:
    used, limit = _held(line, "memory_bytes"), _held(line, "memory_limit_bytes")
    return size(used) if used is None or limit is None else f"{size(used)}/{size(limit)}"


def _tasks(line: Line) -> str:
    return str(line.now.usage.tasks) if _known(line.now, "tasks") else MISSING


COLUMNS: Sequence[Column[Line]] = (
    Column("SESSION", lambda line: safe(line.now.session_name)),
    Column("KERNEL", lambda line: safe(line.now.hostname)),
    Column("CPU", lambda line: _percent(line.rate("cpu_time"))),
    Column("MEMORY", _memory),
    Column("PEAK", lambda line: size(_held(line, "memory_peak_bytes")), wide=True),
    Column("DISK R/s", lambda line: size(line.rate("read_bytes")), drop=2),
    Column("DISK W/s", lambda line: size(line.rate("written_bytes")), drop=1),
    Column("NET IN/s", lambda line: size(line.rate("received_bytes")), drop=4),
    Column("NET OUT/s", lambda line: size(line.rate("sent_bytes")), drop=3),
    Column("TASKS", _tasks, drop=5),
    Column("AGENT", lambda line: safe(line.now.agent), wide=True),
    Column("ID", lambda line: safe(line.now.session_id), wide=True),
)
