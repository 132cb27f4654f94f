"""`retinue sacctmgr` and `sshare`: who may use which projects, as programs ask Slurm's accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.slurm.finding import split_words, user_names
from retinue.client.command.slurm.layout import Field, Layout, by_sacct
from retinue.client.command.slurm.slurm_command import LEFT_OUT, SlurmCommand, version_option
from retinue.client.errors import UsageError
from retinue.manager.v1 import account_service_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.client.client import Client

# A user with a project.
_Pair = tuple[str, str]
FIELDS: Mapping[str, Field[_Pair]] = {
    name.lower(): Field(name, value, width)
    for name, width, value in (
        ("Account", 20, lambda pair: safe(pair[1])),
        ("User", 10, lambda pair: safe(pair[0])),
        ("Cluster", 10, lambda _: "retinue"),
        ("DefaultAccount", 20, lambda pair: safe(pair[1])),
        ("Partition", 10, lambda _: ""),
        ("QOS", 20, lambda _: "normal"),
        ("DefaultQOS", 10, lambda _: "normal"),
        ("Share", 9, lambda _: "1"),
        ("RawShares", 10, lambda _: "1"),
        ("Admin", 9, lambda _: "None"),
    )
}
_NAMES = {"acct": "account", "defaultacct": "defaultaccount", "def acct": "defaultaccount"}
_ENTITIES = ("associations", "users", "accounts")


@click.command("sacctmgr", cls=SlurmCommand)
@click.option("-i", "--immediate", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-n", "--noheader", is_flag=True, help="Print no header.")
@click.option("-p", "--parsable", is_flag=True, help="End each column with |.")
@click.option("-P", "--parsable2", is_flag=True, help="Separate columns by |.")
@click.option("-Q", "--quiet", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-r", "--readonly", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-s", "--associations", is_flag=True, expose_value=False, help=LEFT_OUT)
@version_option
@click.argument("words", nargs=-1, metavar="show user|account|association [NAME] [format=COLUMN,…]")
@pass_connection
@asynchronous
async def sacctmgr_command(
    connection: Connection, *, noheader: bool, parsable: bool, parsable2: bool, words: tuple[str, ...]
) -> int:
    """List projects with their users, as Slurm's sacctmgr lists accounts.

    Unless you are an administrator, you see your own. To change them, use `retinue projects` and `retinue users`.
    """
    verb, kind, *rest = (*words, "", "")
    if verb.lower() not in ("show", "list"):
        raise UsageError(f"{verb}: only show and list are here; retinue projects and retinue users change accounts")
    if not kind or not any(entity.startswith(kind.lower()) for entity in _ENTITIES):
        raise UsageError(f"{kind}: is none of {', '.join(_ENTITIES)}")
    columns, users, accounts = "Cluster,Account,User,Share,QOS", list[str](), list[str]()
    for word in filter(None, rest):
        key, equals, value = word.partition("=")
        if equals and "format".startswith(key.lower()):
            columns = value
        elif key.lower() in ("user", "users", "name", "names") or (not equals and key.lower() != "where"):
            users += split_words([value or key])
        elif key.lower() in ("account", "accounts", "acct"):
            accounts += split_words([value])
    named = ",".join(_NAMES.get(part.lower(), part) for part in split_words([columns]))
    layout = by_sacct(named, FIELDS, delimiter="|" if parsable or parsable2 else None, trailing=not parsable2)
    async with connection.client() as client:
        if kind.lower().startswith("ac"):
            users, accounts = [], users + accounts
        owners = await user_names(client, users)
        pairs = [
            pair
            for pair in await _pairs(client)
            if (not users or pair[0] in owners) and (not accounts or pair[1] in accounts)
        ]
    _print(layout, pairs, noheader=noheader, ruled=not (parsable or parsable2))
    return ExitCode.OK


@click.command("sshare", cls=SlurmCommand)
@click.option("-A", "--accounts", metavar="PROJECT,…", help="These projects.")
@click.option("-a", "--all", "all_users", is_flag=True, help="List all users.")
@click.option("-l", "--long", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-M", "--clusters", expose_value=False, metavar="NAME", help="There is one cluster.")
@click.option("-n", "--noheader", is_flag=True, help="Print no header.")
@click.option("-o", "--format", "columns", default="Account,User,RawShares", metavar="COLUMN,…", help="The columns.")
@click.option("-p", "--parsable", is_flag=True, help="End each column with |.")
@click.option("-P", "--parsable2", is_flag=True, help="Separate columns by |.")
@click.option("-U", "--Users", "only_users", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-u", "--users", metavar="USER,…", help="$USER is you.")
@version_option
@pass_connection
@asynchronous
async def sshare_command(
    connection: Connection,
    *,
    accounts: str | None,
    all_users: bool,
    noheader: bool,
    columns: str,
    parsable: bool,
    parsable2: bool,
    users: str | None,
) -> int:
    """List the projects of the caller, as Slurm's sshare lists accounts; `retinue shares` has what is held of each."""
    named = ",".join(_NAMES.get(part.lower(), part) for part in split_words([columns]))
    layout = by_sacct(named, FIELDS, delimiter="|" if parsable or parsable2 else None, trailing=not parsable2)
    async with connection.client() as client:
        owners = await user_names(client, split_words([users or ""]), mine=not users)
        pairs = [
            pair
            for pair in await _pairs(client)
            if (all_users or pair[0] in owners) and (not accounts or pair[1] in split_words([accounts]))
        ]
    _print(layout, pairs, noheader=noheader, ruled=not (parsable or parsable2))
    return ExitCode.OK


async def _pairs(client: Client) -> list[_Pair]:
    """Returns users with the projects that they may use, which for administrators are all: administrators get those of
    all users, others their own.
    """
    caller = await client.users.caller()
    if caller.role != account_service_pb2.USER_ROLE_ADMIN:
        return [(caller.name, membership.project) for membership in caller.memberships]
    projects = [project.name async for project in client.projects.list()]
    users = {user.name: user async for user in client.users.list()}
    return [
        (user.name, project)
        for user in (users | {caller.name: caller}).values()
        for project in (
            projects
            if user.role == account_service_pb2.USER_ROLE_ADMIN
            else [membership.project for membership in user.memberships]
        )
    ]


def _print(layout: Layout[_Pair], pairs: Sequence[_Pair], *, noheader: bool, ruled: bool) -> None:
    if not noheader:
        click.echo(layout.header())
        if ruled:
            click.echo("".join(f"{'-' * column.width}{column.after}" for column in layout.columns))
    for pair in pairs:
        click.echo(layout.line(pair))
