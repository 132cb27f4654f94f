"""`retinue keys`: public keys by which you are let in to your system sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash, since
from retinue.client.command.shell.text_files import TextFile
from retinue.client.command.show.output import Column, list_output_option, output_option, print_list, print_one
from retinue.manager.v1 import account_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group("keys")
def keys_command() -> None:
    """List, add and remove the SSH keys that open your system sessions."""


def _columns(now: float) -> Sequence[Column[pb.SshKey]]:
    return (
        Column("FINGERPRINT", lambda key: safe(key.fingerprint)),
        Column("TYPE", lambda key: safe(key.public_key.partition(" ")[0])),
        Column("DESCRIPTION", lambda key: or_dash(key.description)),
        Column("AGE", lambda key: since(key, "create_time", now)),
        Column("KEY", lambda key: safe(key.public_key), wide=True),
    )


@keys_command.command("ls")
@click.option("--user", default="", help="Owner.  [default: you]")
@list_output_option
@pass_connection
@asynchronous
async def list_keys(connection: Connection, user: str, output: str) -> None:
    """List public keys."""
    async with connection.client() as client:
        keys = [key async for key in client.ssh_keys.list(user=user)]
    print_list(output, pb.ListSshKeysResponse(keys=keys), keys, _columns(time.time()), lambda key: key.fingerprint)


@keys_command.command("add")
@click.option("--description", default="", help="Note on its purpose.  [default: the comment of the key]")
@output_option
@click.argument("text", type=TextFile(), metavar="FILE.pub")
@pass_connection
@asynchronous
async def add_key(connection: Connection, *, text: str, description: str, output: str) -> None:
    """Register the public key in a file, as `~/.ssh/id_ed25519.pub`: it opens your system sessions,
    also those that run.
    """
    async with connection.client() as client:
        key = await client.ssh_keys.add(text, description=description)
    print_one(
        output, key, [(column.title.lower(), column.value(key)) for column in _columns(time.time())], key.fingerprint
    )


@keys_command.command("rm")
@click.argument("fingerprint")
@pass_connection
@asynchronous
async def remove_key(connection: Connection, fingerprint: str) -> None:
    """Remove a key; connections that were made with it end within seconds."""
    async with connection.client() as client:
        click.echo(safe((await client.ssh_keys.remove(fingerprint)).fingerprint))
