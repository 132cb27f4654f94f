"""`retinue agents`: the nodes."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command import options
from retinue.client.command.connection import Connection, asynchronous, pass_connection
from retinue.client.command.output import Column, output_option, print_list, print_message, print_one
from retinue.client.command.text import amounts, or_dash, safe, since
from retinue.manager.v1 import fleet_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group("agents")
def agents_command() -> None:
    """Lists, shows and drains the nodes."""


@agents_command.command("ls")
@click.option(
    "--filter", "filter_", default="", metavar="TERMS", help="""As in: state = "ALIVE" AND drained = "false"."""
)
@output_option
@pass_connection
@asynchronous
async def list_agents(connection: Connection, filter_: str, output: str) -> None:
    """Lists the nodes by id."""
    async with connection.client() as client:
        agents = [agent async for agent in client.agents.list(filter=filter_)]
    print_list(output, pb.ListAgentsResponse(agents=agents), agents, _columns(time.time()), lambda agent: agent.id)


def _columns(now: float) -> Sequence[Column[pb.Agent]]:
    return (
        Column("ID", lambda agent: safe(agent.id)),
        Column("STATE", _state),
        Column("GROUP", lambda agent: or_dash(agent.resource_group)),
        Column("KERNELS", lambda agent: str(agent.kernels) if agent.HasField("kernels") else "-"),
        Column("CAPACITY", lambda agent: amounts(agent.capacity)),
        Column("OCCUPIED", lambda agent: amounts(agent.occupied)),
        Column("ADDRESS", lambda agent: or_dash(agent.address), wide=True),
        Column("ARCHITECTURE", lambda agent: or_dash(agent.architecture), wide=True),
        Column("BACKENDS", lambda agent: or_dash(",".join(agent.backends)), wide=True),
        Column("VERSION", lambda agent: or_dash(agent.version), wide=True),
        Column("HEARD", lambda agent: since(agent, "heartbeat_time", now)),
        Column("AGE", lambda agent: since(agent, "create_time", now)),
    )


def _state(agent: pb.Agent) -> str:
    state = enum_names.name_of(enum_names.AGENT_STATE, agent.state)
    marks = [
        *(["drained"] if agent.drained else []),
        *sorted({_condition_word(condition) for condition in agent.conditions}),
    ]
    return f"{state} ({', '.join(marks)})" if marks else state


def _condition_word(condition: pb.AgentCondition) -> str:
    return enum_names.name_of(enum_names.AGENT_CONDITION, condition.type)


@agents_command.command("get")
@output_option
@click.argument("agent")
@pass_connection
@asynchronous
async def get_agent(connection: Connection, agent: str, output: str) -> None:
    """Shows one node."""
    async with connection.client() as client:
        found = await client.agents.get(agent)
    print_one(output, found, _facts(found), found.id)


def _facts(agent: pb.Agent) -> list[tuple[str, str]]:
    now = time.time()
    return [
        *((column.title.lower(), column.value(agent)) for column in _columns(now)),
        *(("condition", _condition(condition, now)) for condition in agent.conditions),
    ]


def _condition(condition: pb.AgentCondition, now: float) -> str:
    title = " ".join(filter(None, (_condition_word(condition), safe(condition.reason))))
    blocks = ", blocks placements" if condition.blocks_placement else ""
    return f"{title} (for {since(condition, 'since_time', now)}{blocks}): {safe(condition.message)}"


@agents_command.command("drain")
@output_option
@click.argument("agent")
@pass_connection
@asynchronous
async def drain_agent(connection: Connection, agent: str, output: str) -> None:
    """Takes a node out of scheduling; what runs there stays."""
    async with connection.client() as client:
        found = await client.agents.drain(agent)
    print_one(output, found, _facts(found), found.id)


@agents_command.command("undrain")
@output_option
@click.argument("agent")
@pass_connection
@asynchronous
async def undrain_agent(connection: Connection, agent: str, output: str) -> None:
    """Puts a node back into scheduling."""
    async with connection.client() as client:
        found = await client.agents.undrain(agent)
    print_one(output, found, _facts(found), found.id)


@agents_command.command("orphans")
@output_option
@click.argument("agent", required=False, default="")
@pass_connection
@asynchronous
async def list_orphans(connection: Connection, agent: str, output: str) -> None:
    """Lists what nodes run unknown to the database, since it was restored from a backup."""
    async with connection.client() as client:
        found = [orphan async for orphan in client.agents.orphans(agent)]
    message = pb.ListOrphansResponse(orphans=found)
    print_list(output, message, found, _orphan_columns(time.time()), lambda orphan: orphan.attempt_id)


def _orphan_columns(now: float) -> Sequence[Column[pb.Orphan]]:
    return (
        Column("AGENT", lambda orphan: safe(orphan.agent_id)),
        Column("ATTEMPT", lambda orphan: safe(orphan.attempt_id)),
        Column("SESSION", lambda orphan: or_dash(orphan.session_name or orphan.session_id)),
        Column("OWNER", lambda orphan: or_dash(orphan.owner)),
        Column("STATE", lambda orphan: "ENDING" if orphan.end_requested else or_dash(orphan.state)),
        Column("FOUND", lambda orphan: since(orphan, "create_time", now)),
    )


@agents_command.command("end-orphans")
@click.argument("agent")
@click.argument("attempts", metavar="[ATTEMPT]...", nargs=-1)
@pass_connection
@asynchronous
async def end_orphans(connection: Connection, agent: str, attempts: tuple[str, ...]) -> None:
    """Has a node end attempts that the database does not know, by default all; their output is lost."""
    async with connection.client() as client:
        for attempt in await client.agents.end_orphans(agent, attempts):
            click.echo(attempt)


@agents_command.command("join-token")
@click.option("--group", default="", help="Resource group that agents join.  [default: default]")
@click.option("--agent", default="", help="Only an agent of this id may use it.")
@click.option("--ttl", callback=options.span, metavar="TIME", help="How long it is good.  [default: 15m]")
@click.option("--uses", type=click.IntRange(1), default=1, show_default=True, help="How often it may be used.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@pass_connection
@asynchronous
async def create_join_token(  # noqa: PLR0917  # one per option
    connection: Connection, group: str, agent: str, ttl: float | None, uses: int, output: str
) -> None:
    """Makes a token with which nodes enrol as agents; it is shown once."""
    async with connection.client() as client:
        good_for = None if ttl is None else dt.timedelta(seconds=ttl)
        answer = await client.agents.create_join_token(resource_group=group, agent_id=agent, ttl=good_for, uses=uses)
    if output != "table":
        print_message(output, answer)
        return
    click.echo(answer.token)
    click.echo(f"CA fingerprint: {answer.ca_fingerprint}", err=True)
