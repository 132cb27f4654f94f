"""`retinue ls`, `get`, `explain` and `rm`: sessions as they are, why they wait, and their end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command import options
from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.exit_codes import ExitCode, of_error
from retinue.client.command.idle import check_facts
from retinue.client.command.output import (
    Column,
    output_option,
    print_facts,
    print_list,
    print_message,
    print_one,
    table,
)
from retinue.client.command.print_error import print_error
from retinue.client.command.progress import kernel_counts, outcome, reason_text
from retinue.client.command.text import amounts, or_dash, safe, short_id, since, span
from retinue.client.errors import CallError
from retinue.manager.v1 import session_pb2, session_service_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.session import Session


@click.command("ls")
@click.option("-a", "--all", "show_ended", is_flag=True, help="Also sessions that have ended.")
@click.option(
    "--filter", "filter_", default="", metavar="TERMS", help="""As in: state = "RUNNING" AND project = "x"."""
)
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@output_option
@pass_connection
@asynchronous
async def ls_command(connection: Connection, show_ended: bool, filter_: str, limit: int | None, output: str) -> None:
    """Lists sessions, newest first."""
    async with connection.client() as client:
        found = client.sessions.list(filter=filter_, show_ended=show_ended, limit=limit)
        sessions = [session.view async for session in found]
    message = session_service_pb2.ListSessionsResponse(sessions=sessions)
    print_list(output, message, sessions, _columns(time.time()), lambda session: session.id)


def _columns(now: float) -> Sequence[Column[session_pb2.Session]]:
    return (
        Column("ID", lambda session: short_id(session.id)),
        Column("NAME", lambda session: safe(session.spec.name)),
        Column("TYPE", lambda session: enum_names.name_of(enum_names.SESSION_TYPE, session.spec.type).lower()),
        Column("STATE", enum_names.state_of),
        Column("RESULT", _result),
        Column("KERNELS", _ready),
        Column("AGENTS", _agents),
        Column("OWNER", lambda session: or_dash(session.owner)),
        Column("PROJECT", lambda session: or_dash(session.spec.project), wide=True),
        Column("GROUP", lambda session: or_dash(session.spec.resource_group), wide=True),
        Column(
            "MODE",
            lambda session: enum_names.name_of(enum_names.CLUSTER_MODE, session.spec.cluster_mode).lower(),
            wide=True,
        ),
        Column("NETWORK", _network, wide=True),
        Column("PRIORITY", lambda session: str(session.spec.priority), wide=True),
        Column("AGE", lambda session: since(session, "create_time", now)),
        Column("REASON", lambda session: or_dash(session.reason)),
        Column("MESSAGE", lambda session: or_dash(session.message), wide=True),
    )


def _result(session: session_pb2.Session) -> str:
    if session.HasField("exit_code"):
        return f"{enum_names.name_of(enum_names.SESSION_RESULT, session.result)} ({session.exit_code})"
    return (
        "-"
        if session.result <= session_pb2.SESSION_RESULT_UNDEFINED
        else enum_names.name_of(enum_names.SESSION_RESULT, session.result)
    )


def _ready(session: session_pb2.Session) -> str:
    running = sum(kernel.state == session_pb2.KERNEL_STATE_RUNNING for kernel in session.kernels)
    return f"{running}/{len(session.kernels)}"


def _agents(session: session_pb2.Session) -> str:
    return or_dash(",".join(sorted({kernel.agent for kernel in session.kernels if kernel.agent})))


def _network(session: session_pb2.Session) -> str:
    kind = enum_names.name_of(enum_names.NETWORK_KIND, session.network)
    return "-" if kind == "UNSPECIFIED" else kind.lower()


@click.command("get")
@output_option
@click.argument("session")
@pass_connection
@asynchronous
async def get_command(connection: Connection, session: str, output: str) -> None:
    """Shows one session, by id, by the start of it, or by name."""
    async with connection.client() as client:
        view = (await client.sessions.get(session)).view
    print_one(output, view, session_facts(view), view.id)
    if output in ("table", "wide"):
        titles = ["KERNEL", "STATE", "AGENT", "ADDRESS", "SLOTS", "EXIT", "REASON"]
        rows = [
            [
                safe(kernel.hostname),
                enum_names.name_of(enum_names.KERNEL_STATE, kernel.state),
                or_dash(kernel.agent),
                or_dash(kernel.address),
                amounts(kernel.slots),
                str(kernel.exit_code) if kernel.HasField("exit_code") else "-",
                or_dash(kernel.reason),
            ]
            for kernel in view.kernels
        ]
        click.echo()
        for line in table(titles, rows, colour=False):
            click.echo(line)


def _template(spec: session_pb2.SessionSpec) -> str:
    return safe(f"{spec.template.name}@{spec.template.version}") if spec.HasField("template") else ""


def session_facts(session: session_pb2.Session) -> list[tuple[str, str]]:
    """Titles and values, safe, of one session."""
    now = time.time()
    started, ended = enum_names.time_of(session, "start_time"), enum_names.time_of(session, "end_time")
    command = " ".join(session.spec.kernel.command)
    return [
        ("id", safe(session.id)),
        ("name", safe(session.spec.name)),
        ("type", enum_names.name_of(enum_names.SESSION_TYPE, session.spec.type).lower()),
        ("state", outcome(session) if enum_names.is_ended(session) else enum_names.state_of(session)),
        ("reason", "" if enum_names.is_ended(session) else reason_text(session)),
        ("owner", safe(session.owner)),
        ("project", safe(session.spec.project)),
        ("group", safe(session.spec.resource_group)),
        ("cluster", _cluster(session.spec)),
        ("kernels", kernel_counts(session)),
        ("network", "" if _network(session) == "-" else _network(session)),
        ("command", safe(command)),
        ("ports", _ports(session)),
        ("apps", ", ".join(safe(service.name) for service in session.spec.services)),
        ("template", _template(session.spec)),
        ("after", ", ".join(safe(parent.name or short_id(parent.session_id)) for parent in session.dependencies)),
        ("retries", str(session.retries) if session.retries else ""),
        ("labels", safe(" ".join(f"{key}={value}" for key, value in sorted(session.spec.labels.items())))),
        ("age", since(session, "create_time", now) if session.HasField("create_time") else ""),
        ("ran", "" if started is None else span((ended or now) - started)),
        *((safe(condition.type), safe(condition.message)) for condition in session.conditions),
        *check_facts(session),
    ]


def _cluster(spec: session_pb2.SessionSpec) -> str:
    if spec.cluster_size == 1:
        return "1 kernel"
    return f"{spec.cluster_size} kernels, {enum_names.name_of(enum_names.CLUSTER_MODE, spec.cluster_mode).lower().replace('_', '-')}"


def _ports(session: session_pb2.Session) -> str:
    """Returns the ports that clients reach; for a started kernel also those that its image declares."""
    main = session.kernels[0].service_ports if session.kernels else ()
    named = {
        port.name: f"{safe(port.name)} {safe(port.protocol) or 'tcp'} {','.join(map(str, port.ports))}"
        for port in (*main, *session.spec.service_ports)
    }
    ranges = [
        str(ports.first) if ports.first == ports.last else f"{ports.first}-{ports.last}"
        for ports in session.spec.preopen_ports
    ]
    return "; ".join([*named.values(), *ranges])


@click.command("explain")
@output_option
@click.argument("session")
@pass_connection
@asynchronous
async def explain_command(connection: Connection, session: str, output: str) -> None:
    """Says why a session waits: what is short, where, and by how much."""
    async with connection.client() as client:
        answer = await client.sessions.explain(session)
    if output in ("json", "yaml"):
        print_message(output, answer)
        return
    if output == "name":
        click.echo(safe(answer.reason))
        return
    tier = enum_names.name_of(enum_names.REASON_TIER, answer.tier)
    now = time.time()
    next_try = enum_names.time_of(answer, "next_try_time")
    estimate = enum_names.time_of(answer, "estimated_start_time")
    facts = [
        ("state", enum_names.name_of(enum_names.SESSION_STATE, answer.state)),
        ("reason", safe(answer.reason)),
        ("message", safe(answer.message)),
        ("kind", "" if tier == "UNSPECIFIED" else tier.lower()),
        ("queue", f"number {answer.queue_position} of {answer.queue_length}" if answer.queue_position else ""),
        ("waits for", ", ".join(safe(parent.name or short_id(parent.session_id)) for parent in answer.waits_for)),
        ("tries", str(answer.tries) if answer.tries else ""),
        ("evaluated", f"{since(answer, 'evaluate_time', now)} ago" if answer.HasField("evaluate_time") else ""),
        ("failed on", safe(", ".join(answer.failed_agents))),
        ("room", "" if estimate is None else f"in {span(max(0.0, estimate - now))} at the latest, by time limits"),
        ("agents", ", ".join(f"{count.number} {safe(count.cause)}" for count in answer.agents)),
        ("would start with", safe("; or ".join(answer.would_start_with))),
        ("next try", "" if next_try is None else f"in {span(next_try - now)}"),
    ]
    print_facts(facts)
    if answer.shortfalls:
        rows = [
            [or_dash(s.hostname or "all together"), *map(or_dash, (s.slot, s.requested, s.best_agent, s.free, s.short))]
            for s in answer.shortfalls
        ]
        click.echo()
        for line in table(["KERNEL", "SLOT", "WANTS", "BEST AGENT", "FREE", "SHORT"], rows, colour=False):
            click.echo(line)


@click.command("rm")
@click.option("-f", "--force", is_flag=True, help="Kill at once, without the session's grace.")
@click.option("-w", "--wait", is_flag=True, help="Wait until they terminate.")
@click.option("--timeout", callback=options.span, metavar="TIME", help="With --wait: give up after so long.")
@click.argument("sessions", nargs=-1, required=True)
@pass_connection
@asynchronous
async def rm_command(
    connection: Connection,
    sessions: tuple[str, ...],
    force: bool,
    wait: bool,
    timeout: float | None,  # noqa: ASYNC109
) -> int:
    """Ends sessions; all are tried, and the code is that of the first that failed."""
    async with connection.client() as client:
        answers = await asyncio.gather(
            *(client.sessions.terminate(session, force=force) for session in sessions), return_exceptions=True
        )
        code: int = ExitCode.OK
        ending: list[Session] = []
        for answer in answers:
            if isinstance(answer, CallError):
                print_error(answer)
                code = code or of_error(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                click.echo(answer.id)
                ending.append(answer)
        if wait:
            async with asyncio.TaskGroup() as group:
                for session in ending:
                    group.create_task(session.wait_ended(timeout))
    return code
