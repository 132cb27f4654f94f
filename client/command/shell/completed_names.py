"""Completes names as the manager knows them: of sessions, agents, resource groups and templates;
contexts are read from their file.

Nothing is ever printed, and no key waits for a manager that does not answer.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from retinue.client.command.shell.connection import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import click

    from retinue.client.client import Client

MAX_SECONDS = 0.5
"""How long a key waits for the manager."""
_MAX_NAMES = 500


def sessions(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of live sessions that begin so, those of other users as OWNER/NAME: commands take no others."""

    async def names(client: Client) -> AsyncIterator[str]:
        caller = (await client.users.caller()).name
        async for session in client.sessions.list(limit=_MAX_NAMES):
            yield session.name if session.view.owner == caller else f"{session.view.owner}/{session.name}"

    return _asked(context, incomplete, names)


def ports(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of the service ports of the session that is named before, that begin so."""

    async def names(client: Client) -> AsyncIterator[str]:
        view = (await client.sessions.get(str(context.params.get("session")))).view
        for port in (*view.spec.service_ports, *(view.kernels[0].service_ports if view.kernels else ())):
            yield port.name

    return _asked(context, incomplete, names)


def agents(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns ids of agents that begin so."""

    async def names(client: Client) -> AsyncIterator[str]:
        async for agent in client.agents.list(limit=_MAX_NAMES):
            yield agent.id

    return _asked(context, incomplete, names)


def groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of resource groups that begin so."""

    async def names(client: Client) -> AsyncIterator[str]:
        async for group in client.resource_groups.list(limit=_MAX_NAMES):
            yield group.name

    return _asked(context, incomplete, names)


def templates(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of templates that begin so."""

    async def names(client: Client) -> AsyncIterator[str]:
        async for template in client.templates.list(limit=_MAX_NAMES):
            yield template.name

    return _asked(context, incomplete, names)


def contexts(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of contexts that begin so."""
    from retinue.client.settings import contexts_path, read_contexts  # noqa: PLC0415  # pages of help need none of it

    try:
        _, found = read_contexts(contexts_path(os.environ))
    except Exception:  # noqa: BLE001  # a key press shows no error
        return []
    return sorted(name for name in found if name.startswith(incomplete))


def _asked(context: click.Context, incomplete: str, names: Callable[[Client], AsyncIterator[str]]) -> list[str]:
    import asyncio  # noqa: PLC0415  # pages of help need none of it

    async def ask() -> list[str]:
        # Made first: its modules take longer to load than the manager to answer, and are not what is waited for.
        unopened = connection.client()
        async with asyncio.timeout(MAX_SECONDS), unopened as client:
            return [name async for name in names(client)]

    # The program's own function has not run: its options are there all the same.
    given = context.find_root().params
    connection = Connection(*(given.get(name) for name in ("context", "endpoint", "token", "ca")))
    try:
        found = asyncio.run(ask())
    except (Exception, KeyboardInterrupt):  # noqa: BLE001  # a key press shows no error
        return []
    return sorted({name for name in found if name.startswith(incomplete)})
