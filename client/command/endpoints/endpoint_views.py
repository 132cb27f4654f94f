"""Shows endpoints and their replicas."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from retinue.client import enum_names
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash, since
from retinue.client.command.show.output import Column, print_one
from retinue.manager.v1 import endpoint_pb2 as epb

if TYPE_CHECKING:
    from collections.abc import Sequence

STATE = epb.EndpointState.DESCRIPTOR
_REPLICA, _ROLLOUT = epb.ReplicaState.DESCRIPTOR, epb.RolloutState.DESCRIPTOR


def columns(now: float) -> Sequence[Column[epb.Endpoint]]:
    """Returns the columns of a list of endpoints; `now` is the time, in seconds since 1970."""
    return (
        Column("NAME", lambda item: safe(item.spec.name)),
        Column("PROJECT", lambda item: safe(item.spec.project)),
        Column("STATE", lambda item: enum_names.name_of(STATE, item.state)),
        Column("READY", lambda item: f"{item.ready_replicas}/{item.target}"),
        Column("REVISIONS", _traffic),
        Column("URL", lambda item: or_dash(item.url)),
        Column("OWNER", lambda item: safe(item.owner), wide=True),
        Column("ID", lambda item: safe(item.id), wide=True),
        Column("AGE", lambda item: since(item, "create_time", now)),
    )


def replica_columns(now: float) -> Sequence[Column[epb.Replica]]:
    """Returns the columns of a list of replicas; `now` is the time, in seconds since 1970."""
    return (
        Column("REPLICA", lambda item: safe(item.session)),
        Column("REVISION", lambda item: str(item.revision)),
        Column("STATE", lambda item: enum_names.name_of(_REPLICA, item.state)),
        Column("FOR", lambda item: since(item, "since_time", now)),
        Column("AGENT", lambda item: or_dash(item.agent)),
        Column("ADDRESS", lambda item: or_dash(item.address)),
        Column("WHY", lambda item: or_dash(item.message)),
    )


def _traffic(item: epb.Endpoint) -> str:
    """Returns shares as `1: 90%, 2: 10%`, with what is in force where that differs."""
    parts = []
    for share in item.traffic:
        now = "" if share.percent == share.effective_percent else f" (now {share.effective_percent}%)"
        parts.append(f"{share.revision}: {share.percent}%{now}")
    return ", ".join(parts) or "-"


def _rollout(rollout: epb.Rollout) -> list[tuple[str, str]]:
    """Returns the rollout that runs, or the last one, which says nothing of the traffic since then."""
    if not rollout.state:
        return []
    state = enum_names.name_of(_ROLLOUT, rollout.state)
    text = f"{rollout.from_revision} to {rollout.to_revision}: {state}"
    if rollout.state == epb.ROLLOUT_STATE_DONE:
        return [("last rollout", text)]
    name = "last rollout" if rollout.state == epb.ROLLOUT_STATE_ROLLED_BACK else "rollout"
    return [(name, f"{text}: {safe(rollout.message)}")]


def say_unresolved(url: str) -> None:
    """Says how programs reach an address whose name this machine does not resolve, as Python does not those below
    localhost; curl and browsers take them for this machine by themselves.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host.endswith(".localhost"):
        return
    try:
        socket.getaddrinfo(host, parts.port)
    except OSError:
        direct = parts._replace(netloc="127.0.0.1" if parts.port is None else f"127.0.0.1:{parts.port}")
        click.echo(
            f"retinue: curl and browsers resolve {safe(host)} by themselves, this machine does not: have other programs "
            f"use {safe(direct.geturl())} with the header `Host: {safe(parts.netloc)}`, as in "
            f'`OpenAI(base_url="…", default_headers={{"Host": "{safe(parts.netloc)}"}})`, '
            f"or add `127.0.0.1 {safe(host)}` to /etc/hosts",
            err=True,
        )


def print_endpoint(output: str, item: epb.Endpoint) -> None:
    """Prints an endpoint."""
    now = time.time()
    facts = [(column.title.lower(), column.value(item)) for column in columns(now)]
    facts.append(("host label", safe(item.host_label)))
    facts.append(("wanted because", safe(item.target_reason)))
    facts += _rollout(item.rollout)
    facts += [(safe(item.type), safe(item.message)) for item in item.conditions]
    print_one(output, item, facts, item.spec.name)
