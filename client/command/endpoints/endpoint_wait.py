"""Waits for endpoints and prints what changes meanwhile on standard error."""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, Any, TypeVar

import click

from retinue.client import enum_names
from retinue.client.command.shell import options
from retinue.client.command.shell.interrupts import said_when_cancelled
from retinue.client.command.shell.printable import safe
from retinue.client.errors import NotFound, RetinueError, WaitTimeout
from retinue.manager.v1 import endpoint_pb2 as epb

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.client.aio import Client
    from retinue.manager.v1 import endpoint_service_pb2 as pb

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_STATE = epb.EndpointState.DESCRIPTOR
_REPLICA = epb.ReplicaState.DESCRIPTOR
_ROLLOUT = epb.RolloutState.DESCRIPTOR
_FINISHED = (epb.ROLLOUT_STATE_UNSPECIFIED, epb.ROLLOUT_STATE_DONE, epb.ROLLOUT_STATE_ROLLED_BACK)
_BACK = (epb.ROLLOUT_STATE_ROLLING_BACK, epb.ROLLOUT_STATE_ROLLED_BACK)
_POLL_SECONDS = 0.5


def wait_options(command: _Command) -> _Command:
    """Adds `--wait` and `--timeout` to a command."""
    command = click.option(
        "--timeout",
        "wait_seconds",
        callback=options.span,
        metavar="TIME",
        help="With --wait: exit with 5 after this time.",
    )(command)
    return click.option("-w", "--wait", is_flag=True, help="Wait until it is done, and print changes.")(command)


async def wait_ready(client: Client, endpoint: str, seconds: float | None) -> epb.Endpoint:
    """Waits until a new endpoint is ready. Raises WaitTimeout."""
    return await _wait(client, endpoint, seconds, _is_ready)


async def wait_rollout(
    client: Client,
    begun: epb.Endpoint,
    seconds: float | None,
    *,
    promoted: bool = False,
) -> epb.Endpoint:
    """Waits until a rollout has reached the revision that it was going to when `begun`, or waits for a user.

    One that was `promoted` has to leave the step that it was in first. Raises WaitTimeout, and RetinueError when
    another revision has taken over instead.
    """

    def is_reached(answer: pb.GetEndpointResponse) -> bool:
        if hint := rollout_end(answer, begun, promoted=promoted):
            click.echo(f"{safe(begun.spec.name)}: {hint}", err=True)
        return hint is not None

    return await _wait(client, begun.id, seconds, is_reached)


def rollout_end(answer: pb.GetEndpointResponse, begun: epb.Endpoint, *, promoted: bool = False) -> str | None:
    """Returns what a rollout waits for that does not come by itself, safe, or "" when it is done;
    None while it moves. As `wait_rollout`.
    """
    rollout, before = answer.endpoint.rollout, begun.rollout
    if {rollout.from_revision, rollout.to_revision} != {before.from_revision, before.to_revision}:
        raise RetinueError("another rollout has begun")
    if _goal(rollout) != _goal(before):
        raise RetinueError(f"the rollout went back to revision {_goal(rollout)}: {safe(rollout.message)}")
    if rollout.state in _FINISHED:
        return "" if _is_ready(answer) else None
    if promoted and _new_share(answer.endpoint) == _new_share(begun):
        return None
    return _waits_for(answer) or None


async def wait_scaled(client: Client, changed: epb.Endpoint, seconds: float | None) -> epb.Endpoint:
    """Waits until there are as many replicas as the bounds and the floor of `changed` ask for. Raises WaitTimeout."""

    def is_reached(answer: pb.GetEndpointResponse) -> bool:
        found = answer.endpoint
        in_bounds = _least(found) <= found.target <= found.spec.scaling.max
        return in_bounds and found.target == found.replicas == found.ready_replicas

    return await _wait(client, changed.id, seconds, is_reached)


async def wait_deleted(client: Client, endpoint: str, seconds: float | None) -> None:
    """Waits until an endpoint, by its id, and its replicas are gone. Raises WaitTimeout."""
    try:
        await _wait(client, endpoint, seconds, lambda found: found.endpoint.state == epb.ENDPOINT_STATE_DELETED)
    except NotFound:
        return


def _is_ready(answer: pb.GetEndpointResponse) -> bool:
    """Returns whether it serves with as many replicas as it has at least: its state allows for a lack that is short."""
    found = answer.endpoint
    if found.state == epb.ENDPOINT_STATE_ASLEEP:
        return True
    return found.state == epb.ENDPOINT_STATE_READY and found.ready_replicas >= _least(found)


def _least(found: epb.Endpoint) -> int:
    return min(max(found.spec.scaling.min, found.scaling_floor.replicas), found.spec.scaling.max)


def _goal(rollout: epb.Rollout) -> int:
    return rollout.from_revision if rollout.state in _BACK else rollout.to_revision


def _waits_for(answer: pb.GetEndpointResponse) -> str:
    """Returns what a running rollout waits for that does not come by itself, or "" when it moves."""
    found = answer.endpoint
    name = safe(found.spec.name)
    if found.rollout.state == epb.ROLLOUT_STATE_PAUSED:
        return f"its rollout is paused; `retinue endpoint resume {name}` continues it"
    if found.state == epb.ENDPOINT_STATE_ASLEEP:
        return "it is asleep; its rollout continues when something is asked for"
    if found.rollout.state != epb.ROLLOUT_STATE_PROGRESSING:
        return ""
    ready = [item.revision for item in answer.replicas if item.state == epb.REPLICA_STATE_READY]
    return _step_reached(found, ready.count(found.rollout.to_revision), f"`retinue endpoint promote {name}` continues")


def _step_reached(found: epb.Endpoint, ready: int, promote: str) -> str:
    """Returns what a step of a rollout has reached that stays until it is promoted, or for long; "" when it moves."""
    revision, spec, share = f"revision {found.rollout.to_revision}", found.rollout.spec, _new_share(found)
    if any(step.percent == share and not step.HasField("hold") for step in spec.canary.steps):
        return f"{revision} has {share} % of the requests; {promote}"
    if spec.HasField("blue_green") and share > 0:
        return f"{revision} has all requests; the old replicas stay for a while"
    if spec.HasField("blue_green") and not spec.blue_green.automatic and ready >= found.target:
        return f"all replicas of {revision} are ready; {promote}"
    return ""


def _new_share(found: epb.Endpoint) -> int:
    """Returns the share of the revision that a rollout goes to, in percent."""
    return next((item.percent for item in found.traffic if item.revision == found.rollout.to_revision), 0)


async def _wait(
    client: Client,
    endpoint: str,
    seconds: float | None,
    is_reached: Callable[[pb.GetEndpointResponse], bool],
) -> epb.Endpoint:
    before = ""
    try:
        async with said_when_cancelled("it goes on without this program"), asyncio.timeout(seconds):
            while True:
                found = await client.endpoints.get(endpoint)
                shown = _progress(found)
                if shown != before:
                    click.echo(shown, err=True)
                    before = shown
                if is_reached(found):
                    return found.endpoint
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise WaitTimeout(f"it is not done yet: {before or safe(endpoint)}") from None


def _progress(answer: pb.GetEndpointResponse) -> str:
    """Returns an endpoint as it is now in one line, safe: its state, its replicas by revision and state,
    its rollout and conditions.
    """
    found = answer.endpoint
    counts = collections.Counter(
        (item.revision, enum_names.name_of(_REPLICA, item.state))
        for item in answer.replicas
        if item.state != epb.REPLICA_STATE_GONE
    )
    replicas = ", ".join(f"{count} {state} of revision {number}" for (number, state), count in sorted(counts.items()))
    parts = [
        f"{safe(found.spec.name)}: {enum_names.name_of(_STATE, found.state)} {found.ready_replicas}/{found.target}"
    ]
    parts += [replicas] if replicas else []
    if found.rollout.state not in _FINISHED:
        state = enum_names.name_of(_ROLLOUT, found.rollout.state)
        parts.append(f"rollout to revision {_goal(found.rollout)} {state}: {safe(found.rollout.message)}")
    parts += [f"{safe(item.type)}: {safe(item.message)}" for item in found.conditions]
    return "; ".join(parts)
