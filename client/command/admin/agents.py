"""`retinue agents`: the nodes."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.interrupts import said_when_cancelled
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import amounts, or_dash, since, span
from retinue.client.command.show.output import (
    Column,
    list_output_option,
    output_option,
    print_list,
    print_message,
    print_one,
)
from retinue.client.errors import RetinueError, WaitTimeout
from retinue.manager.v1 import fleet_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.client import Client

# Between two looks at a node that is waited for.
_POLL_SECONDS = 1.0


@click.group("agents")
def agents_command() -> None:
    """List, show, drain and remove the nodes."""


@agents_command.command("ls")
@click.option(
    "--filter", "filter_", default="", metavar="TERMS", help="""Filter, as state = "ALIVE" AND drained = "false"."""
)
@list_output_option
@pass_connection
@asynchronous
async def list_agents(connection: Connection, filter_: str, output: str) -> None:
    """List the nodes by id."""
    async with connection.client() as client:
        agents = [agent async for agent in client.agents.list(filter=filter_)]
    print_list(output, pb.ListAgentsResponse(agents=agents), agents, _columns(time.time()), lambda agent: agent.id)


def _columns(now: float) -> Sequence[Column[pb.Agent]]:
    return (
        Column("ID", lambda agent: safe(agent.id)),
        Column("STATE", _state),
        Column("GROUP", lambda agent: or_dash(agent.resource_group), drop=1),
        Column("KERNELS", lambda agent: str(agent.kernels) if agent.HasField("kernels") else "-"),
        Column("CAPACITY", lambda agent: amounts(agent.capacity)),
        Column("OCCUPIED", lambda agent: amounts(agent.occupied)),
        Column("ADDRESS", lambda agent: or_dash(agent.address), wide=True),
        Column("ARCHITECTURE", lambda agent: or_dash(agent.architecture), wide=True),
        Column("RUNTIMES", _runtimes, wide=True),
        Column("NOT OFFERED", _not_offered, wide=True),
        Column("VERSION", lambda agent: or_dash(agent.version), wide=True),
        Column("HEARD", lambda agent: since(agent, "heartbeat_time", now), drop=2),
        Column("AGE", lambda agent: since(agent, "create_time", now)),
    )


def _runtimes(agent: pb.Agent) -> str:
    """Returns the names of the runtimes, and in brackets how they run."""
    said = {status.name: safe(status.message) for status in agent.runtimes if status.message}
    return or_dash(",".join(f"{name} ({said[name]})" if name in said else name for name in agent.available_runtimes))


def _not_offered(agent: pb.Agent) -> str:
    missing = (status for status in agent.runtimes if not status.available)
    return or_dash("; ".join(f"{status.name}: {status.message}" for status in missing))


def _state(agent: pb.Agent) -> str:
    state = enum_names.name_of(enum_names.AGENT_STATE, agent.state)
    marks = [
        *(["draining" if agent.kernels else "drained"] if agent.drained else []),
        *sorted({_condition_word(condition) for condition in agent.conditions}),
    ]
    return f"{state} ({', '.join(marks)})" if marks else state


def _condition_word(condition: pb.AgentCondition) -> str:
    return enum_names.name_of(enum_names.AGENT_CONDITION, condition.type)


@agents_command.command("get")
@output_option
@click.argument("agent", shell_complete=completed_names.agents)
@pass_connection
@asynchronous
async def get_agent(connection: Connection, agent: str, output: str) -> None:
    """Show one node."""
    async with connection.client() as client:
        found = await client.agents.get(agent)
    print_one(output, found, agent_facts(found), found.id)


def agent_facts(agent: pb.Agent) -> list[tuple[str, str]]:
    """Returns what is shown of one node."""
    now = time.time()
    return [
        *(
            (column.title.lower(), _heard(agent, now) if column.title == "HEARD" else column.value(agent))
            for column in _columns(now)
        ),
        ("evicts", _deadline(agent, now)),
        *(("condition", _condition(condition, now)) for condition in agent.conditions),
    ]


def _heard(agent: pb.Agent, now: float) -> str:
    """Returns since when a node was not heard; of one that has never come since it was enrolled, what that means."""
    heard = since(agent, "heartbeat_time", now)
    came = agent.state not in (pb.AGENT_STATE_JOINING, pb.AGENT_STATE_LOST) or (heard != "-" and agent.address)
    # Users do not see when it came.
    if came or not agent.HasField("create_time"):
        return heard
    when = "never since it was enrolled" if heard == "-" else f"{heard}, and not since it was enrolled again"
    why = (
        f"it listens at {safe(agent.address)}, where the manager does not reach it"
        if agent.address
        else "its log says why (`cannot announce this node`)"
    )
    return f"{when}; {why}: see docs/how-to/troubleshooting.md"


def _deadline(agent: pb.Agent, now: float) -> str:
    moment = enum_names.time_of(agent, "drain_deadline_time")
    return (
        ""
        if moment is None
        else f"in {span(moment - now)}"
        if moment > now
        else f"what still runs there, for {span(now - moment)}"
    )


def _condition(condition: pb.AgentCondition, now: float) -> str:
    title = " ".join(filter(None, (_condition_word(condition), safe(condition.reason))))
    blocks = ", blocks placements" if condition.blocks_placement else ""
    return f"{title} (for {since(condition, 'since_time', now)}{blocks}): {safe(condition.message)}"


@agents_command.command("drain")
@click.option("--keep-system", is_flag=True, help="Keep system sessions, too; with --deadline, until then.")
@click.option("--deadline", callback=options.span, metavar="TIME", help="Evict kernels that still run after this time.")
@click.option("--evict", is_flag=True, help="Evict all kernels at once, as --deadline 0s.")
@click.option("-w", "--wait", is_flag=True, help="Wait until no kernel is left.")
@click.option("--timeout", callback=options.span, metavar="TIME", help="With --wait: exit with 5 after this time.")
@output_option
@click.argument("agent", shell_complete=completed_names.agents)
@pass_connection
@asynchronous
async def drain_agent(
    connection: Connection,
    *,
    agent: str,
    keep_system: bool,
    deadline: float | None,
    evict: bool,
    wait: bool,
    timeout: float | None,  # noqa: ASYNC109
    output: str,
) -> None:
    """Take a node out of scheduling; sessions there stay, except system sessions, which end with their grace.

    An evicted session runs on other nodes if it may run again (`retinue run --retry`) or has not started yet; else it
    ends with AGENT_DRAINED. Replicas of endpoints are replaced on other nodes before they end.
    """
    if evict and deadline is not None:
        raise click.UsageError("--evict means --deadline 0s: use one of them")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")
    bound = 0.0 if evict else deadline
    async with connection.client() as client:
        found = await client.agents.drain(
            agent, keep_system=keep_system, deadline=None if bound is None else dt.timedelta(seconds=bound)
        )
        if wait:
            found = await _wait_drained(client, found, timeout)
    print_one(output, found, agent_facts(found), found.id)


async def _wait_drained(client: Client, agent: pb.Agent, timeout: float | None) -> pb.Agent:  # noqa: ASYNC109
    """Returns the agent once no kernel is live there. Raises WaitTimeout."""
    shown = 0
    goes_on = f"{safe(agent.id)} goes on draining; `retinue agents undrain {safe(agent.id)}` ends that"
    try:
        async with said_when_cancelled(goes_on), asyncio.timeout(timeout):
            while agent.kernels:
                if agent.kernels != shown:
                    shown = agent.kernels
                    click.echo(f"{safe(agent.id)}: {shown} kernels left", err=True)
                await asyncio.sleep(_POLL_SECONDS)
                agent = await client.agents.get(agent.id)
                if not agent.drained:
                    raise RetinueError(f"agent {agent.id} was put back into scheduling")
    except TimeoutError:
        raise WaitTimeout(f"{agent.kernels} kernels are still live on agent {agent.id}") from None
    return agent


@agents_command.command("undrain")
@output_option
@click.argument("agent", shell_complete=completed_names.agents)
@pass_connection
@asynchronous
async def undrain_agent(connection: Connection, agent: str, output: str) -> None:
    """Put a node back into scheduling."""
    async with connection.client() as client:
        found = await client.agents.undrain(agent)
    print_one(output, found, agent_facts(found), found.id)


@agents_command.command("cordon")
@output_option
@click.argument("agent", shell_complete=completed_names.agents)
@pass_connection
@asynchronous
async def cordon_agent(connection: Connection, agent: str, output: str) -> None:
    """Take a node out of scheduling and end nothing: drain --keep-system."""
    async with connection.client() as client:
        found = await client.agents.drain(agent, keep_system=True)
    print_one(output, found, agent_facts(found), found.id)


agents_command.add_command(undrain_agent, "uncordon")


@agents_command.command("rm")
@click.argument("agents", shell_complete=completed_names.agents, nargs=-1, required=True)
@pass_connection
@asynchronous
async def remove_agents(connection: Connection, agents: tuple[str, ...]) -> None:
    """Remove nodes that run nothing, such as those that are gone; refused while kernels of one are live."""
    async with connection.client() as client:
        for agent in agents:
            await client.agents.delete(agent)
            click.echo(agent)


@agents_command.command("revoke")
@click.argument("agents", shell_complete=completed_names.agents, nargs=-1, required=True)
@pass_connection
@asynchronous
async def revoke_agents(connection: Connection, agents: tuple[str, ...]) -> None:
    """Revoke the certificates of nodes for good, whatever they run.

    Their sessions end, or run again on other nodes if they may, once the agent is lost and has stopped by itself what
    may run again. Other kernels keep running until the node's administrator ends them.
    """
    async with connection.client() as client:
        for agent in agents:
            await client.agents.revoke(agent)
            click.echo(agent)


@agents_command.command("confirm-lost")
@click.option("--group", default="", shell_complete=completed_names.groups, help="All held agents of a resource group.")
@click.argument("agents", shell_complete=completed_names.agents, nargs=-1)
@pass_connection
@asynchronous
async def confirm_lost_agents(connection: Connection, group: str, agents: tuple[str, ...]) -> None:
    """Confirm that nodes with the condition LOSS_HELD are lost; prints which.

    Their kernels are then ended, run again elsewhere or kept, as after the loss of any node. Kernels that may run again
    have stopped there by themselves; others may still run, on a node that is cut off.
    """
    if bool(group) == bool(agents):
        raise click.UsageError("name the nodes, or their group with --group")
    async with connection.client() as client:
        for agent in await client.agents.confirm_lost(agents, resource_group=group):
            click.echo(safe(agent))


@agents_command.command("orphans")
@list_output_option
@click.argument("agent", shell_complete=completed_names.agents, required=False, default="")
@pass_connection
@asynchronous
async def list_orphans(connection: Connection, agent: str, output: str) -> None:
    """List what nodes run unknown to the database, since it was restored from a backup."""
    async with connection.client() as client:
        found = [orphan async for orphan in client.agents.orphans(agent)]
    message = pb.ListOrphansResponse(orphans=found)
    print_list(output, message, found, _orphan_columns(time.time()), lambda orphan: orphan.attempt_id)


def _orphan_columns(now: float) -> Sequence[Column[pb.Orphan]]:
    return (
        Column("AGENT", lambda orphan: safe(orphan.agent)),
        Column("ATTEMPT", lambda orphan: safe(orphan.attempt_id)),
        Column("SESSION", lambda orphan: or_dash(orphan.session_name or orphan.session_id)),
        Column("OWNER", lambda orphan: or_dash(orphan.owner)),
        Column("STATE", lambda orphan: "ENDING" if orphan.end_requested else or_dash(orphan.state)),
        Column("FOUND", lambda orphan: since(orphan, "create_time", now)),
    )


@agents_command.command("end-orphans")
@click.argument("agent", shell_complete=completed_names.agents)
@click.argument("attempts", metavar="[ATTEMPT]...", nargs=-1)
@pass_connection
@asynchronous
async def end_orphans(connection: Connection, agent: str, attempts: tuple[str, ...]) -> None:
    """Have a node end attempts that the database does not know, by default all; their output is lost."""
    async with connection.client() as client:
        for attempt in await client.agents.end_orphans(agent, attempts):
            click.echo(attempt)


@agents_command.command("join-token")
@click.option(
    "--group",
    default="",
    shell_complete=completed_names.groups,
    help="Resource group that agents join.  [default: default]",
)
@click.option("--agent", default="", help="Only an agent of this id may use it.")
@click.option("--ttl", callback=options.span, metavar="TIME", help="Lifetime of the token.  [default: 15m]")
@click.option("--uses", type=click.IntRange(1), default=1, show_default=True, help="Number of uses.")
@click.option("--router", is_flag=True, help="Enrol routers instead of agents; --agent is the id of the router.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@pass_connection
@asynchronous
async def create_join_token(  # noqa: PLR0917  # one per option
    connection: Connection, group: str, agent: str, ttl: float | None, uses: int, router: bool, output: str
) -> None:
    """Create a token with which nodes enrol as agents, or as routers; it is shown once."""
    async with connection.client() as client:
        good_for = None if ttl is None else dt.timedelta(seconds=ttl)
        answer = await client.agents.create_join_token(
            resource_group=group, agent_id=agent, ttl=good_for, uses=uses, router=router
        )
    if output != "table":
        print_message(output, answer)
        return
    click.echo(answer.token)
    click.echo(f"CA fingerprint: {answer.ca_fingerprint}", err=True)
    if not router:
        managers = connection.settings().endpoint
        click.echo(
            f"on the node, as root: retinue-agent join --id {agent or 'ID'} --manager {managers} --join-token {answer.token} "
            f"--ca-fingerprint {answer.ca_fingerprint}",
            err=True,
        )
