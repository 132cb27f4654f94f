"""`retinue groups` and `shares`: pools of agents, how they schedule, and who holds how much of them."""

from __future__ import annotations

import datetime as dt
import math
import time
from fractions import Fraction
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from retinue.client import enum_names
from retinue.client.admin.fleet import GroupPolicy
from retinue.client.admin.scheduling_policy import strategy_name
from retinue.client.command.admin import scheduling_policy
from retinue.client.command.sessions import idle
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import amounts, or_dash, since, span
from retinue.client.command.show.output import Column, list_output_option, output_option, print_list, print_one
from retinue.client.errors import Aborted, UsageError
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1.scheduling_policy_pb2 import SchedulingPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


# The server answers with up to 1,000, and a range has parts of intervals at both ends.
_MAX_POINTS = 900


@click.group("groups")
def groups_command() -> None:
    """List, show, create and change resource groups."""


def _policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "--weight", multiple=True, callback=options.pairs, metavar="OWNER=N", help="Weight of an owner in drf."
            ),
            click.option(
                "--egress", type=click.Choice(["allow", "deny"]), help="Access of kernels to outside networks."
            ),
            click.option(
                "--mount-root",
                multiple=True,
                callback=options.mount_roots,
                metavar=options.MOUNT_ROOT,
                help="Directories that sessions may mount; replaces all, an empty one allows none.",
            ),
            click.option(
                "--image-registry",
                multiple=True,
                metavar="HOST[:PORT]",
                help="Registries of images, as *.example.org; replaces all, an empty one allows docker.io only.",
            ),
            click.option(
                "--session-type",
                multiple=True,
                type=click.Choice(["interactive", "batch", "inference", "system", ""]),
                help="Allowed types of sessions; replaces all, an empty one allows all.",
            ),
            click.option(
                "--allow-isolation",
                multiple=True,
                type=click.Choice([*options.ISOLATIONS.choices, ""]),
                help="Allowed isolations; replaces all, an empty one allows all.",
            ),
            click.option(
                "--default-isolation",
                type=click.Choice([*options.ISOLATIONS.choices, ""]),
                help="Isolation of kernels that ask for none; empty: container with an image, else process.",
            ),
            click.option(
                "--default-pull",
                type=click.Choice([*options.PULL_POLICIES.choices, ""]),
                help="Pull policy of kernels that ask for none; empty: missing.",
            ),
            click.option(
                "--idle",
                multiple=True,
                callback=idle.policy,
                metavar=idle.FORM,
                help=f"Idle policy; replaces all of it, `none` removes it. {idle.HELP}",
            ),
            click.option(
                "--start-timeout", callback=options.span, metavar="TIME", help="Longest time from placement to RUNNING."
            ),
            click.option("--max-grace", callback=options.span, metavar="TIME", help="Longest grace of a session."),
            click.option(
                "--mass-loss-percent",
                type=click.IntRange(1, 100),
                help="Hold agents that are lost together if they exceed this share of the group; 100: never.",
            ),
            click.option("--mass-loss-agents", type=click.IntRange(1), help="Fewest agents to hold."),
            click.option(
                "--mass-loss-window",
                callback=options.span,
                metavar="TIME",
                help="Time within which losses count together.",
            ),
        )
    ):
        command = option(command)
    return scheduling_policy.policy_options(command)


def _policy(given: dict[str, Any]) -> GroupPolicy:
    policy = GroupPolicy()
    if given["weight"]:
        try:
            policy["owner_weights"] = {owner: int(weight) for owner, weight in given["weight"].items()}
        except ValueError as error:
            raise UsageError(f"a weight is a whole number: {error}") from error
    if given["egress"] is not None:
        policy["egress"] = given["egress"]
    if given["mount_root"] is not None:
        policy["mount_roots"] = given["mount_root"]
    if given["image_registry"]:
        policy["image_registries"] = [pattern for pattern in given["image_registry"] if pattern]
    if given["session_type"]:
        policy["session_types"] = [name for name in given["session_type"] if name]
    if given["allow_isolation"]:
        policy["isolations"] = [name for name in given["allow_isolation"] if name]
    if given["default_isolation"] is not None:
        policy["default_isolation"] = given["default_isolation"]
    if given["default_pull"] is not None:
        policy["default_pull_policy"] = given["default_pull"]
    if given["idle"] is not None:
        policy["idle_policy"] = idle.exempt_refused("--idle", given["idle"])
    if given["start_timeout"] is not None:
        policy["start_timeout"] = dt.timedelta(seconds=given["start_timeout"])
    if given["max_grace"] is not None:
        policy["max_grace"] = dt.timedelta(seconds=given["max_grace"])
    return policy | _held_losses(given)


def _held_losses(given: dict[str, Any]) -> GroupPolicy:
    policy = GroupPolicy()
    if given["mass_loss_percent"] is not None:
        policy["mass_loss_percent"] = given["mass_loss_percent"]
    if given["mass_loss_agents"] is not None:
        policy["mass_loss_agents"] = given["mass_loss_agents"]
    if given["mass_loss_window"] is not None:
        policy["mass_loss_window"] = dt.timedelta(seconds=given["mass_loss_window"])
    return policy


def _scheduling(current: SchedulingPolicy, given: dict[str, Any]) -> GroupPolicy:
    """Returns the parts of a scheduling policy that change, as they are afterwards."""
    policy, affected = GroupPolicy(), scheduling_policy.apply(current, given)
    if "session_strategy" in affected:
        policy["session_strategy"] = current.session_strategy
    if "agent_strategy" in affected:
        policy["agent_strategy"] = current.agent_strategy
    if "external_server" in affected and current.HasField("external_server"):
        policy["external_server"] = current.external_server
    elif "external_server" in affected:
        policy["external_server"] = None
    if "reservation" in affected:
        policy["reservation"] = current.reservation
    if "preemption" in affected:
        policy["preemption"] = current.preemption
    if "max_kernels_per_agent" in affected:
        policy["max_kernels_per_agent"] = current.max_kernels_per_agent
    if "pending_timeout" in affected:
        policy["pending_timeout"] = current.pending_timeout.ToTimedelta()
    return policy


def _columns(now: float) -> Sequence[Column[pb.ResourceGroup]]:
    return (
        Column("NAME", lambda group: safe(group.name)),
        Column("SESSIONS", lambda group: or_dash(strategy_name(group.scheduling_policy.session_strategy))),
        Column("AGENTS", lambda group: or_dash(strategy_name(group.scheduling_policy.agent_strategy))),
        Column("OPTIONS", lambda group: scheduling_policy.options_text(group.scheduling_policy), wide=True),
        Column("WEIGHTS", _weights, wide=True),
        Column("EGRESS", _egress, wide=True),
        Column("MOUNT ROOTS", lambda group: or_dash(" ".join(map(_mount_root, group.mount_roots))), wide=True),
        Column("REGISTRIES", lambda group: or_dash(safe(" ".join(group.image_registries))), wide=True),
        Column("ISOLATIONS", _isolations, wide=True),
        Column("PULL", _pull_policy, wide=True),
        Column("IDLE", lambda group: idle.policy_text(group.idle_policy), wide=True),
        Column("START TIMEOUT", lambda group: span(group.start_timeout.seconds), wide=True),
        Column("MAX GRACE", lambda group: span(group.max_grace.seconds), wide=True),
        Column("MASS LOSS", _mass_loss, wide=True),
        Column("AGE", lambda group: since(group, "create_time", now)),
    )


def _mass_loss(group: pb.ResourceGroup) -> str:
    """Returns when losses are held; a manager of an older version does not say."""
    if not group.mass_loss_percent:
        return "-"
    window = span(group.mass_loss_window.seconds)
    return f"over {group.mass_loss_percent}%, {group.mass_loss_agents} agents, {window}"


def _egress(group: pb.ResourceGroup) -> str:
    return pb.EgressPolicy.Name(group.egress).removeprefix("EGRESS_POLICY_").lower()


def _pull_policy(group: pb.ResourceGroup) -> str:
    policy = group.default_pull_policy
    return enum_names.name_of(enum_names.PULL_POLICY, policy).lower() if policy else "missing"


def _isolations(group: pb.ResourceGroup) -> str:
    allowed = ",".join(enum_names.name_of(enum_names.ISOLATION, number).lower() for number in group.isolations) or "all"
    if not group.default_isolation:
        return allowed
    return f"{allowed} (default {enum_names.name_of(enum_names.ISOLATION, group.default_isolation).lower()})"


def _mount_root(root: pb.MountRoot) -> str:
    projects = f"@{','.join(root.projects)}" if root.projects else ""
    words = ["rw"] if root.writable else []
    if root.HasField("owner"):
        words.append("uid=account" if root.owner.account else f"uid={root.owner.uid}")
        words += [f"gid={root.owner.gid}"] if root.owner.gid else []
    return safe(f"{root.path}{':' if words else ''}{','.join(words)}{projects}")


def _weights(group: pb.ResourceGroup) -> str:
    return amounts({owner: str(weight) for owner, weight in group.owner_weights.items()})


def _print(output: str, group: pb.ResourceGroup) -> None:
    facts = [(column.title.lower(), column.value(group)) for column in _columns(time.time())]
    print_one(output, group, facts, group.name)


@groups_command.command("ls")
@list_output_option
@pass_connection
@asynchronous
async def list_groups(connection: Connection, output: str) -> None:
    """List groups by name."""
    async with connection.client() as client:
        groups = [group async for group in client.resource_groups.list()]
    message = pb.ListResourceGroupsResponse(resource_groups=groups)
    print_list(output, message, groups, _columns(time.time()), lambda group: group.name)


@groups_command.command("get")
@output_option
@click.argument("name", shell_complete=completed_names.groups)
@pass_connection
@asynchronous
async def get_group(connection: Connection, name: str, output: str) -> None:
    """Show one group."""
    async with connection.client() as client:
        _print(output, await client.resource_groups.get(name))


@groups_command.command("create")
@_policy_options
@output_option
@click.argument("name")
@pass_connection
@asynchronous
async def create_group(connection: Connection, /, name: str, output: str, **given: Any) -> None:
    """Create a group."""
    policy = _policy(given) | _scheduling(SchedulingPolicy(), given)
    async with connection.client() as client:
        _print(output, await client.resource_groups.create(name, **policy))


@groups_command.command("update")
@_policy_options
@click.option(
    "--add-mount-root",
    multiple=True,
    callback=options.mount_roots,
    metavar=options.MOUNT_ROOT,
    help="Add a mount root, or replace the one with the same path and projects.",
)
@click.option(
    "--remove-mount-root",
    multiple=True,
    metavar="PATH[@PROJECT,…]",
    help="Remove a mount root; without projects, all with the path.",
)
@click.option("--etag", default="", help="Change the group only if its etag still matches.")
@output_option
@click.argument("name", shell_complete=completed_names.groups)
@pass_connection
@asynchronous
async def update_group(connection: Connection, /, name: str, output: str, etag: str, **given: Any) -> None:
    """Change fields of a group's policy."""
    added, removed = given.pop("add_mount_root") or [], given.pop("remove_mount_root")
    policy, partly = _policy(given), bool(added or removed) or scheduling_policy.given_in(given)
    if "mount_roots" in policy and (added or removed):
        raise click.UsageError(
            "--mount-root replaces all mount roots: use it without --add-mount-root and --remove-mount-root"
        )
    if not policy and not partly:
        raise click.UsageError("name at least one field to change")
    async with connection.client() as client:
        while partly:
            # The options change a part of the current policy: no other caller may change it meanwhile.
            current = await client.resource_groups.get(name)
            changed = policy | _scheduling(current.scheduling_policy, given)
            if added or removed:
                changed["mount_roots"] = changed_roots(current.mount_roots, added, removed)
            try:
                group = await client.resource_groups.update(name, etag=etag or current.etag, **changed)
            except Aborted:
                if etag:
                    raise
                continue
            _print(output, group)
            return
        _print(output, await client.resource_groups.update(name, etag=etag, **policy))


def changed_roots(
    current: Iterable[pb.MountRoot], added: Iterable[pb.MountRoot], removed: Iterable[str]
) -> list[pb.MountRoot]:
    """Returns mount roots after some are removed and then others added. Raises UsageError for one that is not there."""
    roots = list(current)
    for value in removed:
        path, _, projects = value.partition("@")
        names = sorted(filter(None, projects.split(",")))
        left = [root for root in roots if root.path != path or (names and sorted(root.projects) != names)]
        if len(left) == len(roots):
            there = ", ".join(map(_mount_root, roots)) or "none"
            raise UsageError(f"{safe(value)} is no mount root of the group; there is {there}")
        roots = left
    for root in added:
        same = [(other.path, sorted(other.projects)) for other in roots]
        key = (root.path, sorted(root.projects))
        if key in same:
            roots[same.index(key)] = root
        else:
            roots.append(root)
    return roots


@groups_command.command("rm")
@click.argument("name", shell_complete=completed_names.groups)
@pass_connection
@asynchronous
async def remove_group(connection: Connection, name: str) -> None:
    """Remove a group without agents and live sessions."""
    async with connection.client() as client:
        await client.resource_groups.delete(name)
    click.echo(name)


@click.command("shares")
@list_output_option
@click.option(
    "--since",
    callback=options.moment,
    metavar="TIME",
    help="The mean and the largest share since this time: 2h, 7d ago, or 2026-01-31T12:00:00Z.",
)
@click.option("--until", callback=options.moment, metavar="TIME", help="With --since: only before this time.")
@click.argument("group", shell_complete=completed_names.groups, default="default")
@pass_connection
@asynchronous
async def shares_command(
    connection: Connection, group: str, since: dt.datetime | None, until: dt.datetime | None, output: str
) -> None:
    """List the owners' dominant shares in a group, largest first.

    With --since, those over time of the group as a whole, of projects and of users. -o json has them by the hour; a
    range of more than 1,000 hours has points of several hours.
    """
    if since is not None:
        await _show_histories(connection, group, since, until, output)
        return
    if until is not None:
        raise click.UsageError("--until needs --since")
    async with connection.client() as client:
        shares = list(await client.resource_groups.shares(group))
    columns: Sequence[Column[pb.Share]] = (
        Column("OWNER", lambda share: safe(share.owner)),
        Column("SHARE", share_text),
        Column("OF", lambda share: or_dash(share.dominant_slot)),
        Column("WEIGHT", lambda share: str(share.weight)),
        Column("HELD", lambda share: amounts(share.held)),
    )
    print_list(output, pb.ListSharesResponse(shares=shares), shares, columns, lambda share: share.owner)


async def _show_histories(
    connection: Connection, group: str, since: dt.datetime, until: dt.datetime | None, output: str
) -> None:
    hours = ((until or dt.datetime.now(dt.UTC)) - since) / dt.timedelta(hours=1)
    interval = 3600.0 * max(1, math.ceil(hours / _MAX_POINTS))
    async with connection.client() as client:
        listed = client.resource_groups.share_histories(group, since=since, until=until, interval=interval)
        histories = [history async for history in listed]
    columns: Sequence[Column[pb.ShareHistory]] = (
        Column("KIND", lambda history: enum_names.name_of(pb.ShareKind.DESCRIPTOR, history.kind)),
        Column("NAME", lambda history: or_dash(safe(history.name))),
        Column("MEAN", lambda history: _percent(fmean(point.share for point in history.points))),
        Column("PEAK", lambda history: _percent(max(point.peak for point in history.points))),
        Column("WEIGHT", lambda history: or_dash(str(history.weight or ""))),
    )
    print_list(
        output,
        pb.ListShareHistoriesResponse(histories=histories),
        histories,
        columns,
        lambda history: history.name,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def share_text(share: pb.Share) -> str:
    """Returns a share as an exact fraction and in per cent: `2/3 (66.7 %)`."""
    if share.denominator == 0:
        return "-"
    fraction = Fraction(share.numerator, share.denominator)
    return f"{fraction} ({float(fraction) * 100:.1f} %)"
