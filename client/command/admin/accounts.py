"""`retinue projects`, `users` and `tokens`."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.shell import options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash, since
from retinue.client.command.show.output import (
    Column,
    list_output_option,
    output_option,
    print_list,
    print_message,
    print_one,
)
from retinue.manager.v1 import account_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.client.words import ProjectRole, UserRole


@click.group("projects")
def projects_command() -> None:
    """List and create projects, and their members."""


@projects_command.command("ls")
@list_output_option
@pass_connection
@asynchronous
async def list_projects(connection: Connection, output: str) -> None:
    """List projects by name."""
    now = time.time()
    async with connection.client() as client:
        projects = [project async for project in client.projects.list()]
    columns: Sequence[Column[pb.Project]] = (
        Column("NAME", lambda project: safe(project.name)),
        Column("AGE", lambda project: since(project, "create_time", now)),
    )
    print_list(output, pb.ListProjectsResponse(projects=projects), projects, columns, lambda project: project.name)


@projects_command.command("create")
@click.argument("name")
@pass_connection
@asynchronous
async def create_project(connection: Connection, name: str) -> None:
    """Create a project."""
    async with connection.client() as client:
        click.echo((await client.projects.create(name)).name)


@projects_command.command("rm")
@click.argument("name")
@pass_connection
@asynchronous
async def remove_project(connection: Connection, name: str) -> None:
    """Remove a project without live sessions."""
    async with connection.client() as client:
        await client.projects.delete(name)
    click.echo(name)


@projects_command.command("member")
@click.option("--role", type=click.Choice(["member", "admin"]), default="member", show_default=True)
@click.argument("project")
@click.argument("user")
@pass_connection
@asynchronous
async def set_member(connection: Connection, project: str, user: str, role: ProjectRole) -> None:
    """Add a user to a project, or change the role there."""
    async with connection.client() as client:
        found = await client.projects.set_member(project, user, role)
    print_one("table", found, _user_facts(found), found.name)


@projects_command.command("remove-member")
@click.argument("project")
@click.argument("user")
@pass_connection
@asynchronous
async def remove_member(connection: Connection, project: str, user: str) -> None:
    """Remove a user from a project."""
    async with connection.client() as client:
        found = await client.projects.remove_member(project, user)
    print_one("table", found, _user_facts(found), found.name)


@click.group("users")
def users_command() -> None:
    """List, create and change users."""


def _user_columns(now: float) -> Sequence[Column[pb.User]]:
    return (
        Column("NAME", lambda user: safe(user.name)),
        Column("ROLE", lambda user: enum_names.name_of(enum_names.USER_ROLE, user.role).lower()),
        Column("PROJECTS", _memberships),
        Column("FILE OWNER", _file_owner, wide=True),
        Column("AGE", lambda user: since(user, "create_time", now)),
    )


def _memberships(user: pb.User) -> str:
    roles = [
        f"{entry.project}={enum_names.name_of(enum_names.PROJECT_ROLE, entry.role).lower()}"
        for entry in user.memberships
    ]
    return or_dash(" ".join(roles))


def _file_owner(user: pb.User) -> str:
    return f"{user.file_owner.uid}:{user.file_owner.gid}" if user.HasField("file_owner") else "-"


def _user_facts(user: pb.User) -> list[tuple[str, str]]:
    return [(column.title.lower(), column.value(user)) for column in _user_columns(time.time())]


@users_command.command("ls")
@list_output_option
@pass_connection
@asynchronous
async def list_users(connection: Connection, output: str) -> None:
    """List users by name."""
    async with connection.client() as client:
        users = [user async for user in client.users.list()]
    print_list(output, pb.ListUsersResponse(users=users), users, _user_columns(time.time()), lambda user: user.name)


@users_command.command("get")
@output_option
@click.argument("name")
@pass_connection
@asynchronous
async def get_user(connection: Connection, name: str, output: str) -> None:
    """Show one user."""
    async with connection.client() as client:
        user = await client.users.get(name)
    print_one(output, user, _user_facts(user), user.name)


@users_command.command("me")
@output_option
@pass_connection
@asynchronous
async def show_caller(connection: Connection, output: str) -> None:
    """Show who you are."""
    async with connection.client() as client:
        user = await client.users.caller()
    print_one(output, user, _user_facts(user), user.name)


_OWNER = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
_MAX_ID = 2**31 - 1
_NONE = "none"


def _owner(_context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Reads `UID:GID`; usage errors for root's numbers and anything else."""
    if value is None:
        return None
    found = _OWNER.fullmatch(value)
    if found is None or not all(0 < int(number) <= _MAX_ID for number in found.groups()):
        raise click.BadParameter(
            "must be UID:GID, two numbers from 1 on: nothing in a mount is root's", param=parameter
        )
    return int(found[1]), int(found[2])


def _owner_or_none(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | tuple[()] | None:
    """As `_owner`; nothing in it for `none`, and None where the option is not given."""
    return () if value == _NONE else _owner(context, parameter, value)


_FILE_OWNER = "UID and GID, on nodes, of files in mounts with `uid=account`."


@users_command.command("create")
@click.option("--admin", is_flag=True, help="Make the user an administrator.")
@click.option("--file-owner", callback=_owner, metavar="UID:GID", help=_FILE_OWNER)
@click.option(
    "--project", "projects", multiple=True, callback=options.pairs, metavar="NAME=ROLE", help="member or admin."
)
@output_option
@click.argument("name")
@pass_connection
@asynchronous
async def create_user(
    connection: Connection,
    *,
    name: str,
    admin: bool,
    projects: Mapping[str, ProjectRole],
    file_owner: tuple[int, int] | None,
    output: str,
) -> None:
    """Create a user."""
    role: UserRole = "admin" if admin else "user"
    async with connection.client() as client:
        user = await client.users.create(name, role=role, projects=projects, file_owner=file_owner)
    print_one(output, user, _user_facts(user), user.name)
    steps = [] if user.memberships else [f"retinue projects member PROJECT {safe(user.name)}"]
    steps.append(f"retinue tokens create --user {safe(user.name)}")
    click.echo(f"next: {'; '.join(steps)}", err=True)


@users_command.command("update")
@click.option("--role", type=click.Choice(["user", "admin"]), help="Role in the whole system.")
@click.option(
    "--file-owner",
    callback=_owner_or_none,
    metavar=f"UID:GID|{_NONE}",
    help=f"{_FILE_OWNER} With `{_NONE}`, the user cannot mount those.",
)
@output_option
@click.argument("name")
@pass_connection
@asynchronous
async def update_user(
    connection: Connection,
    *,
    name: str,
    role: UserRole | None,
    file_owner: tuple[int, int] | tuple[()] | None,
    output: str,
) -> None:
    """Set a user's role, or whom files of the user's sessions belong to on the nodes.

    One administrator has to be left.
    """
    if role is None and file_owner is None:
        raise click.UsageError("give --role or --file-owner")
    async with connection.client() as client:
        if file_owner is not None:
            user = await client.users.set_file_owner(name, file_owner or None)
        if role is not None:
            user = await client.users.set_role(name, role)
    print_one(output, user, _user_facts(user), user.name)


@users_command.command("rm")
@click.argument("name")
@pass_connection
@asynchronous
async def remove_user(connection: Connection, name: str) -> None:
    """Remove a user without live sessions, and the user's tokens."""
    async with connection.client() as client:
        await client.users.delete(name)
    click.echo(name)


@click.group("tokens")
def tokens_command() -> None:
    """List, create and revoke bearer tokens."""


@tokens_command.command("ls")
@click.option("--user", default="", help="Owner.  [default: you]")
@list_output_option
@pass_connection
@asynchronous
async def list_tokens(connection: Connection, user: str, output: str) -> None:
    """List tokens, newest first, without their secrets."""
    now = time.time()
    async with connection.client() as client:
        tokens = [token async for token in client.tokens.list(user=user)]
    columns: Sequence[Column[pb.Token]] = (
        Column("ID", lambda token: safe(token.id)),
        Column("USER", lambda token: safe(token.user)),
        Column("STATE", lambda token: token_state(token, now)),
        Column("DESCRIPTION", lambda token: or_dash(token.description)),
        Column("AGE", lambda token: since(token, "create_time", now)),
    )
    print_list(output, pb.ListTokensResponse(tokens=tokens), tokens, columns, lambda token: token.id)


def token_state(token: pb.Token, now: float) -> str:
    """Returns `valid`, `expired` or `revoked` at `now`, in seconds since 1970."""
    if token.HasField("revoke_time"):
        return "revoked"
    expires = enum_names.time_of(token, "expire_time")
    return "valid" if expires is None or expires > now else "expired"


@tokens_command.command("create")
@click.option("--user", default="", help="Owner of the token.  [default: you]")
@click.option("--ttl", callback=options.span, metavar="TIME", help="Lifetime of the token.  [default: until revoked]")
@click.option("--description", "--label", "description", default="", help="Note on its purpose.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@pass_connection
@asynchronous
async def create_token(connection: Connection, *, user: str, ttl: float | None, description: str, output: str) -> None:
    """Create a token and print its secret; it is shown once."""
    async with connection.client() as client:
        good_for = None if ttl is None else dt.timedelta(seconds=ttl)
        answer = await client.tokens.create(user=user, description=description, ttl=good_for)
    if output != "table":
        print_message(output, answer)
        return
    click.echo(answer.secret)
    click.echo(f"id {answer.token.id}, user {safe(answer.token.user)}", err=True)


@tokens_command.command("revoke")
@click.argument("token_id")
@pass_connection
@asynchronous
async def revoke_token(connection: Connection, token_id: str) -> None:
    """Revoke a token; streams opened with it end."""
    async with connection.client() as client:
        click.echo((await client.tokens.revoke(token_id)).id)
