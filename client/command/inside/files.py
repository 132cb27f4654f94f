"""`retinue cp` and `retinue files`: files between here and a kernel's work directory."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.show.output import Column, list_output_option, print_list
from retinue.client.errors import NotFound, TransferError
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import file_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.client.kernel.files import Files
    from retinue.client.kernel.local_files import Progress

WORK = "/home/work"
"""The work directory as a kernel sees it."""
_REMOTE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):(.*)", re.DOTALL)
_LETTERS = {file_pb2.FILE_TYPE_DIRECTORY: "d", file_pb2.FILE_TYPE_LINK: "l", file_pb2.FILE_TYPE_OTHER: "?"}
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class Remote:
    """A path in a kernel: `path` is beneath the work directory; `inside` says that something is to go into it."""

    session: str
    path: str
    inside: bool


def remote(text: str) -> Remote | None:
    """Parses `SESSION:PATH`; None for a local path. Raises UsageError."""
    matched = _REMOTE.fullmatch(text)
    if matched is None:
        return None
    session, path = matched.groups()
    inside = path.endswith("/") or path in {"", ".", WORK}
    if path == WORK or path.startswith(f"{WORK}/"):
        path = path[len(WORK) + 1 :]
    elif path.startswith("/"):
        raise click.UsageError(f"{path} is not beneath the work directory {WORK}")
    path = path.removeprefix("./").rstrip("/")
    return Remote(session, "" if path == "." else path, inside)


@click.command("cp")
@click.option("-r", "--recursive", is_flag=True, help="Copy a directory and all beneath it.")
@click.option("-k", "--kernel", default="", help="Hostname of the kernel.  [default: main1]")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.argument("source")
@click.argument("target")
@pass_connection
@asynchronous
async def cp_command(
    connection: Connection, *, recursive: bool, kernel: str, quiet: bool, source: str, target: str
) -> int:
    """Copy files to or from the work directory of a running session; one of SOURCE and TARGET is SESSION:PATH.

    A PATH is relative to the work directory, or absolute within it. If the target is a directory, or ends with `/`,
    files are copied into it. Each file is copied whole or not at all, and a copy continues over broken connections.
    Symbolic links are copied as links; links that lead out of the copied directory are left out and named, and the code
    is 1.

    \b
      retinue cp train.py my-session:
      retinue cp -r data my-session:inputs/
      retinue cp my-session:out/plot.png .
    """
    there, here = remote(target), remote(source)
    if (there is None) == (here is None):
        raise click.UsageError(
            "one of SOURCE and TARGET must be SESSION:PATH (write ./NAME for a local file with a colon)"
        )
    async with connection.client() as client:
        with _show_progress(quiet=quiet) as progress:
            if there is not None:
                files = client.sessions.files(there.session, kernel)
                local = Path(source)
                path = await _into(files, there, await asyncio.to_thread(_name_of, local))
                copied = await files.upload(local, path, recursive=recursive, progress=progress)
            elif here is not None:
                files = client.sessions.files(here.session, kernel)
                destination = Path(target)
                is_directory: bool = await asyncio.to_thread(Path.is_dir, destination)
                if here.path and is_directory:
                    destination /= PurePosixPath(here.path).name
                elif target.endswith("/") and not recursive:
                    raise TransferError(f"{safe(target)} is no directory")
                copied = await files.download(here.path, destination, recursive=recursive, progress=progress)
    left_out = (*copied.missing, *copied.skipped)
    for path, why in left_out[:_MAX_LISTED]:
        click.echo(f"left out: {safe(path)} {safe(why)}", err=True)
    if len(left_out) > _MAX_LISTED:
        click.echo(f"left out: {len(left_out) - _MAX_LISTED} more", err=True)
    if not quiet:
        click.echo(f"{copied.files} {'file' if copied.files == 1 else 'files'}, {copied.bytes} bytes", err=True)
    return ExitCode.FAILURE if left_out else ExitCode.OK


def _name_of(local: Path) -> str:
    return local.resolve().name


async def _into(files: Files, there: Remote, name: str) -> str:
    """Returns the path in the kernel that a local file of that name is copied to."""
    below = f"{there.path}/{name}" if there.path else name
    if there.inside:
        return below
    try:
        entries = await files.list(there.path)
    except NotFound as error:
        if error.metadata.get("kind") != "file":
            raise
        return there.path
    is_file = len(entries) == 1 and entries[0].path == there.path
    return there.path if is_file else below


@contextmanager
def _show_progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Shows progress on one line of a terminal; maps errors of this machine to TransferError."""
    shown = sys.stderr.isatty() and not quiet

    def progress(path: str, done: int, size: int) -> None:
        percent = 100 * done // size if size else 100
        click.echo(f"\r\x1b[K{percent:3d} %  {safe(path)[-60:]}", nl=False, err=True)

    try:
        yield progress if shown else None
    except OSError as error:
        raise TransferError(f"{safe(str(error.filename or 'a file'))}: {error.strerror}") from error
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)


@click.command("files")
@click.option("-r", "--recursive", is_flag=True, help="List directories beneath it, too.")
@click.option("-k", "--kernel", default="", help="Hostname of the kernel.  [default: main1]")
@list_output_option
@click.argument("reference", metavar="SESSION[:PATH]")
@pass_connection
@asynchronous
async def files_command(connection: Connection, *, recursive: bool, kernel: str, output: str, reference: str) -> None:
    """List files in the work directory of a running session."""
    where = remote(reference) or Remote(reference, "", inside=True)
    async with connection.client() as client:
        entries = await client.sessions.files(where.session, kernel).list(where.path, recursive=recursive)
    columns: tuple[Column[file_pb2.FileEntry], ...] = (
        Column("MODE", _mode),
        Column("SIZE", lambda entry: str(entry.size)),
        Column("CHANGED", _changed),
        Column("PATH", _name),
    )
    print_list(output, pb.ListFilesResponse(entries=entries), entries, columns, lambda entry: safe(entry.path))


def _mode(entry: file_pb2.FileEntry) -> str:
    return _LETTERS.get(entry.type, "-") + stat.filemode(entry.mode)[1:]


def _changed(entry: file_pb2.FileEntry) -> str:
    return dt.datetime.fromtimestamp(entry.modify_time.seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _name(entry: file_pb2.FileEntry) -> str:
    if entry.type == file_pb2.FILE_TYPE_LINK:
        return f"{safe(entry.path)} -> {safe(entry.target)}"
    return safe(entry.path) + ("/" if entry.type == file_pb2.FILE_TYPE_DIRECTORY else "")
