"""Chooses sessions by their labels: the option `-l`, and which sessions a command for many of them means; ends many."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from retinue.client.errors import CallError
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from retinue.client.client import Client
    from retinue.client.sessions import Session
    from retinue.manager.v1 import session_service_pb2

_Command = TypeVar("_Command", bound="Callable[..., object]")


def selector_option(command: _Command) -> _Command:
    """Returns the option `-l`."""
    return click.option(
        "-l",
        "--selector",
        "selectors",
        multiple=True,
        callback=_terms,
        metavar="NAME=VALUE",
        help="Select sessions with this label, or without it by NAME!=VALUE; may be repeated.",
    )(command)


def say_none(sessions: Collection[str]) -> None:
    """Says on standard error that no session was chosen: nothing was done."""
    if not sessions:
        click.echo("retinue: no session of yours matches", err=True)


async def end_sessions(client: Client, sessions: Sequence[str], *, force: bool) -> list[Session | CallError]:
    """Ends sessions; returns in their order what each is then, as far as the answer says, or why it does not end."""
    if len(sessions) == 1:
        # A manager lets one user make more of these calls than of those for many.
        try:
            return [await client.sessions.terminate(sessions[0], force=force)]
        except CallError as error:
            return [error]
    # With gRPC, which help does without.
    from retinue.client.sessions import Session  # noqa: PLC0415
    from retinue.client.transport.rpc_errors import from_status  # noqa: PLC0415

    answer = await client.sessions.terminate_many(sessions, force=force)
    return [
        from_status(result.refused)
        if result.HasField("refused")
        else Session(client.sessions, _view(result.terminated), answer.position.revision, answer.position.incarnation)
        for result in answer.results
    ]


def _view(terminated: session_service_pb2.TerminatedSession) -> session_pb2.Session:
    spec = session_pb2.SessionSpec(name=terminated.name)
    return session_pb2.Session(id=terminated.id, number=terminated.number, state=terminated.state, spec=spec)


def selected(filter_: str, terms: Iterable[str]) -> str:
    """Returns a filter of the API that a session matches if it matches all of these."""
    return " AND ".join(filter(None, (filter_, *terms)))


def term(field: str, value: str, *, operator: str = "=") -> str:
    """Returns a term of a filter of the API, such as `labels.team = "x"`."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{field} {operator} "{escaped}"'


def _terms(_context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> list[str]:
    found = []
    for value in values:
        for part in value.split(","):
            name, equals, content = part.partition("=")
            operator = "!=" if name.endswith("!") else "="
            name, content = name.removesuffix("!"), content.removeprefix("=")
            if not equals or not name:
                raise click.BadParameter(f"{part!r} is not NAME=VALUE or NAME!=VALUE", param=parameter)
            found.append(term(f"labels.{name}", content, operator=operator))
    return found
