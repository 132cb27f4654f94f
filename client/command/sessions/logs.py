"""`retinue logs`: the output of kernels, as it came."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.show.terminal_text import Printer, raw_option

if TYPE_CHECKING:
    import datetime as dt

    from retinue.client.logs import LogChunk

# Bytes of a line that is shown before it ends: more is no progress.
_LIVE = 4096


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the kernels end.")
@click.option("-k", "--kernel", default="", help="Hostname of the kernel.  [default: main1]")
@click.option("--all", "all_kernels", is_flag=True, help="Print all kernels, each line after its hostname.")
@click.option("--since-offset", type=click.IntRange(0), default=0, metavar="BYTE", help="Start at this byte.")
@click.option(
    "--since",
    callback=options.moment,
    metavar="TIME",
    help="Print output after this time: 30s, 10m, 2h ago, or 2026-01-31T12:00:00Z.",
)
@click.option("--tail", type=click.IntRange(0, 100_000), default=0, metavar="LINES", help="Print only the last lines.")
@click.option(
    "--attempt",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Attempt to print.  [default: the newest]",
)
@click.option(
    "--stream",
    "only",
    type=click.Choice(["stdout", "stderr"]),
    help="Print one stream; output of an unknown one counts as stdout.",
)
@raw_option
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def logs_command(
    connection: Connection,
    *,
    session: str,
    follow: bool,
    kernel: str,
    all_kernels: bool,
    since_offset: int,
    since: dt.datetime | None,
    tail: int,
    attempt: int | None,
    only: str | None,
    raw: bool,
) -> None:
    """Print the output of a session's kernels: what was printed to standard error goes to standard error here.

    Kernels in virtual machines, and agents of earlier versions, have one stream, which goes to standard output.
    """
    if all_kernels and (kernel or since_offset or attempt):
        raise click.UsageError("--all excludes --kernel, --since-offset and --attempt")
    printers = {errors: Printer(raw=raw, errors=errors) for errors in (False, True)}
    lines = {errors: HostLines() for errors in printers}
    async with connection.client() as client:
        chunks = client.sessions.logs(
            session,
            kernel,
            all_kernels=all_kernels,
            offset=since_offset,
            follow=follow,
            since=since,
            tail=tail,
            attempt=attempt or 0,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                if chunk.dropped:
                    dropped = (
                        f"retinue: {chunk.dropped} bytes of {safe(chunk.hostname)} are lost: they fell to the size limit,"
                        " or the node's disk took nothing"
                    )
                    click.echo(dropped, err=True)
                errors = chunk.stream == "stderr"
                if only is None or errors == (only == "stderr"):
                    data = lines[errors].take(chunk) if all_kernels else chunk.data
                    await asyncio.to_thread(printers[errors].write, data)
        for errors, printer in printers.items():
            await asyncio.to_thread(printer.write, lines[errors].rest())
            await asyncio.to_thread(printer.finish)


class HostLines:
    """Output of several kernels as whole lines with the hostname in front. A line that writes over itself, as progress
    bars do by carriage returns, is shown as it grows.
    """

    def __init__(self) -> None:
        """Keeps nothing yet."""
        self._unfinished: dict[str, _Unfinished] = {}
        # Whose line is shown, and may go on.
        self._shown = ""

    def take(self, chunk: LogChunk) -> bytes:
        """Returns the lines that the chunk finishes, and what a line that writes over itself says now;
        other beginnings are kept.
        """
        *whole, rest = chunk.data.split(b"\n")
        written = [self._finish(chunk.hostname, line) for line in whole]
        if rest:
            kept = self._unfinished.setdefault(chunk.hostname, _Unfinished())
            kept.add(rest)
            if kept.overwrites and kept.size <= _LIVE:
                written.append(self._before(chunk.hostname) + _line(chunk.hostname, kept.text()))
                kept.keep_last()
                self._shown = chunk.hostname
        return b"".join(written)

    def rest(self) -> bytes:
        """Returns the lines that were begun and not finished."""
        return b"".join([self._finish(hostname, b"") for hostname in list(self._unfinished)])

    def _finish(self, hostname: str, text: bytes) -> bytes:
        before = self._before(hostname)
        self._shown = ""
        if (kept := self._unfinished.pop(hostname, None)) is not None:
            kept.add(text)
            text = kept.text()
        return before + _line(hostname, text) + b"\n"

    def _before(self, hostname: str) -> bytes:
        if not self._shown:
            return b""
        return b"\r" if self._shown == hostname else b"\n"


class _Unfinished:
    """The beginning of a line, in the pieces that came."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0
        self.overwrites = False

    def add(self, text: bytes) -> None:
        self._pieces.append(text)
        self.size += len(text)
        self.overwrites = self.overwrites or b"\r" in text

    def text(self) -> bytes:
        return b"".join(self._pieces)

    def keep_last(self) -> None:
        """Forgets all but what is to be seen now, which the next piece may continue."""
        text = self.text()
        last = text.rstrip(b"\r").rpartition(b"\r")[2] + (b"\r" if text.endswith(b"\r") else b"")
        self._pieces, self.size = [last], len(last)


def _line(hostname: str, text: bytes) -> bytes:
    """Returns a line without its end, with the hostname in front of each text that writes over the one before."""
    front = safe(hostname).ljust(6).encode() + b" | "
    return b"\r".join([front + part for part in text.rstrip(b"\r").split(b"\r")])
