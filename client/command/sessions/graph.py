"""`retinue graph`: the sessions that hang together by dependencies, as a tree that follows them to their ends."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from retinue.client import enum_names
from retinue.client.command.shell import completed_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import short_id
from retinue.client.command.show.live_view import LiveView
from retinue.client.command.show.output import print_message
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.client import Client
    from retinue.manager.v1 import session_service_pb2

# Beyond this, a tree is no help on a screen.
_DEEPEST_SHOWN = 16
_STYLES = {"SUCCESS": "green", "FAILED": "red", "CANCELLED": "red", "RUNNING": "cyan", "PENDING": "yellow"}


@click.command("graph")
@click.option("--once", is_flag=True, help="Show the current state, and exit.")
@click.option("-o", "--output", type=click.Choice(["tree", "json", "yaml"]), default="tree", show_default=True)
@click.argument("session", shell_complete=completed_names.sessions)
@pass_connection
@asynchronous
async def graph_command(connection: Connection, session: str, once: bool, output: str) -> int:
    """Show what a session depends on and what depends on it, until all of it has ended.

    For a single interactive session it shows the state. A session that depends on several others stands under one of
    them and names the rest. Exit with 0 when all succeeded, else 1; with --once or another format than the tree, with
    0.
    """
    async with connection.client() as client:
        graph = await client.sessions.graph(session)
        if output != "tree":
            print_message(output, graph)
            return ExitCode.OK
        console = Console()
        # One that stands alone and has no end of its own would be followed for ever.
        endless = len(graph.nodes) == 1 and not _ended(graph.nodes[0]) and await _is_endless(client, graph.nodes[0].id)
        once = once or endless
        if once or all(_ended(node) for node in graph.nodes):
            _print(console, graph)
        else:
            graph = await _follow(client, session, graph, console)
    if once or all(node.result == session_pb2.SESSION_RESULT_SUCCESS for node in graph.nodes):
        return ExitCode.OK
    return ExitCode.FAILURE


async def _is_endless(client: Client, session: str) -> bool:
    return (await client.sessions.get(session)).view.spec.type != session_pb2.SESSION_TYPE_BATCH


async def _follow(
    client: Client, session: str, graph: session_service_pb2.GetSessionGraphResponse, console: Console
) -> session_service_pb2.GetSessionGraphResponse:
    """Reads the graph again after each portion of events that is about it, until all sessions have ended."""
    live = LiveView(console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
    if live is None:
        _print(console, graph)
    else:
        live.start()
        live.update(Text("\n").join(lines(graph)))
    reference = graph.session_id or session
    try:
        async with aclosing(
            client.sessions.watch(after_revision=graph.position.revision, incarnation=graph.position.incarnation)
        ) as events:
            async for event in events:
                mine = {node.id for node in graph.nodes}
                made = event.HasField("created") and mine.intersection(
                    (
                        *event.created.spec.depends_on,
                        *event.created.spec.runs_after,
                        *event.created.spec.runs_after_failure,
                    )
                )
                if event.revision <= graph.position.revision or not (
                    made or (event.session_id in mine and _changes_graph(event))
                ):
                    continue
                before, graph = graph, await client.sessions.graph(reference)
                if live is None:
                    for line in changes(before, graph):
                        console.print(line, soft_wrap=True)
                else:
                    live.update(Text("\n").join(lines(graph)))
                if all(_ended(node) for node in graph.nodes):
                    break
    finally:
        if live is not None:
            live.stop()
            _print(console, graph)
    return graph


def _changes_graph(event: session_pb2.SessionEvent) -> bool:
    return event.HasField("session_moved") or event.HasField("reason_changed")


def _print(console: Console, graph: session_service_pb2.GetSessionGraphResponse) -> None:
    for line in lines(graph):
        console.print(line, soft_wrap=True)
    if graph.truncated:
        click.echo("retinue: there is more than is shown", err=True)


def lines(graph: session_service_pb2.GetSessionGraphResponse) -> list[Text]:
    """Returns the graph as a tree: every session once, under the last of those it depends on."""
    order = {node.id: position for position, node in enumerate(graph.nodes)}
    nodes = {node.id: node for node in graph.nodes}
    children: dict[str, list[str]] = {}
    roots = []
    for node in graph.nodes:
        inside = [parent for parent in node.depends_on if parent in nodes]
        if inside:
            children.setdefault(max(inside, key=order.__getitem__), []).append(node.id)
        else:
            roots.append(node.id)
    shown = []
    # Each with its depth, and what stands before its own mark.
    stack = [(root, 0, "", "") for root in reversed(roots)]
    while stack:
        key, depth, before, mark = stack.pop()
        node = nodes[key]
        shown.append(_line(node, before + mark, nodes))
        below = children.get(key, [])
        if depth < _DEEPEST_SHOWN and mark:
            before += "   " if mark.startswith("└") else "│  "
        stack.extend(
            (child, depth + 1, before, "└─ " if position == 0 else "├─ ")
            for position, child in enumerate(reversed(below))
        )
    return shown


def _line(
    node: session_service_pb2.SessionNode, before: str, nodes: dict[str, session_service_pb2.SessionNode]
) -> Text:
    state = _state(node)
    line = Text(before).append(safe(node.name) or short_id(node.id)).append(f"  {short_id(node.id)}  ", style="dim")
    line.append(state, style=_STYLES.get(state, ""))
    if node.retries:
        line.append(f"  run again {node.retries} times", style="dim")
    if len(node.depends_on) > 1:
        names = [safe(nodes[key].name) if key in nodes else short_id(key) for key in node.depends_on]
        line.append(f"  after {', '.join(names[:8])}{', …' if len(names) > 8 else ''}", style="dim")  # noqa: PLR2004
    if node.reason and state not in ("SUCCESS", "RUNNING"):
        line.append(f"  {safe(node.reason)}", style="dim")
    return line


def changes(
    before: session_service_pb2.GetSessionGraphResponse, after: session_service_pb2.GetSessionGraphResponse
) -> Sequence[Text]:
    """Returns a line for each session that is new or in another state."""
    was = {node.id: _state(node) for node in before.nodes}
    nodes = {node.id: node for node in after.nodes}
    return [_line(node, "", nodes) for node in after.nodes if was.get(node.id) != _state(node)]


def _state(node: session_service_pb2.SessionNode) -> str:
    if node.result > session_pb2.SESSION_RESULT_UNDEFINED and _ended(node):
        return enum_names.name_of(enum_names.SESSION_RESULT, node.result)
    return enum_names.name_of(enum_names.SESSION_STATE, node.state)


def _ended(node: session_service_pb2.SessionNode) -> bool:
    return node.state in enum_names.ENDED_STATES
